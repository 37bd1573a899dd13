-- prelude: the time, the first write and others, the head of a lane and its wake-up. It stands in front of every script.

-- Redis' time: in ms, and in microseconds as every reply begins with it. ARGV[1] takes its place in tests.
local time = redis.call('TIME')
local now, micros = time[1] * 1000 + math.floor(time[2] / 1000), string.format('%.0f', time[1] * 1000000 + time[2])
if ARGV[1] ~= '' then
  now, micros = tonumber(ARGV[1]), ARGV[1] .. '000'
end

-- The first write of a script: an error reply if Redis is full, else what the command returned. Redis looks at maxmemory only
-- before a script's first write, so a command that frees memory or changes nothing lets the writes behind it pass.
local function first_write(command, key, ...)
  local result = redis.pcall(command, key, ...)
  if type(result) == 'table' then
    return redis.error_reply(string.match(result.err, '%u%u%u+ .*') or result.err)
  end
  return nil, result
end

local function push(list, one, two)
  list[#list + 1] = one
  list[#list + 1] = two
end

-- Calls a command with all of a list behind its key, and an option before it; not with an empty one.
local function call_with(list, command, key, option)
  if #list > 0 and option then
    redis.call(command, key, option, unpack(list))
  elseif #list > 0 then
    redis.call(command, key, unpack(list))
  end
end

-- The smallest due that waits in a lane.
local function head_of(due)
  return redis.call('ZRANGEBYSCORE', due, '(0', '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
end

-- Wakes the claimers of a lane in which `earliest` was written; `head` is what the head was before.
local function wake(channel, lane, earliest, head)
  -- Also where the head is due already: a claimer may have gone past it, and wait for what stands behind it.
  if earliest and (not head or tonumber(earliest) < tonumber(head) or tonumber(head) <= now) then
    redis.pcall('PUBLISH', channel, lane .. ' ' .. earliest)
  end
end
