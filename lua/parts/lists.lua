-- lists: what lists and counts of tasks have in common.

-- The last due that is overdue: 1 s ago.
local last_overdue = now - 1000

-- How many members of a lane wait, are overdue, are in flight and are paused.
local function counts_of(due)
  local waiting, flying = redis.call('ZCOUNT', due, '(0', last_due), redis.call('ZCOUNT', due, '-inf', '(0')
  local overdue = redis.call('ZCOUNT', due, '(0', string.format('%.0f', last_overdue))
  return waiting, overdue, flying, redis.call('ZCARD', due) - waiting - flying
end

-- Whether a member is a task, which a requeued occurrence is not, and its id begins with the prefix.
local function is_listed(member, prefix)
  return string.byte(member) ~= 33 and (prefix == '' or string.sub(member, 1, #prefix) == prefix)
end
