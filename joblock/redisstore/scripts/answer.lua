-- The last stage: answers with the outcome. If the key is taken, the answer says who has it and for how long.
-- If the key is free, the answer says nothing about the record, except for WRONG_JOB: that answer has the job.

if outcome == NOT_FOUND or outcome == LAPSED or outcome == UNLISTED then return outcome end
if outcome == RELEASED then return {RELEASED, ended, reason} end
if not live then return {outcome, STATE_FREE, 0, '', outcome == WRONG_JOB and job or ''} end
if outcome == HELD then return {outcome, state, remaining, holder, job, fence, extra, extra2, extra3, extra4} end
return {outcome, state, remaining, holder, job, extra}
