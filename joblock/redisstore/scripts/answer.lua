-- The last stage: answers with the outcome. If somebody has the key, it says who and for how
-- long. Of a free key it gives only the job, and that only with WRONG_JOB.

if outcome == NOT_FOUND or outcome == LAPSED or outcome == UNLISTED then return outcome end
if outcome == RELEASED then return {RELEASED, ended, reason} end
if not live then return {outcome, STATE_FREE, 0, '', outcome == WRONG_JOB and job or ''} end
if outcome == HELD then return {outcome, state, remaining, holder, job, fence, extra, extra2} end
return {outcome, state, remaining, holder, job, extra}
