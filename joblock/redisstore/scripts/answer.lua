-- The last stage: the answer with an outcome. Where somebody has the key it tells who,
-- and for how long. Of a free key only the job that the record is bound to is told,
-- and only to those who asked for another one.

if outcome == NOT_FOUND or outcome == LAPSED or outcome == UNLISTED then return outcome end
if outcome == RELEASED then return {RELEASED, ended, reason} end
if not live then return {outcome, STATE_FREE, 0, '', outcome == WRONG_JOB and job or ''} end
return {outcome, state, remaining, holder, job, extra, extra2}
