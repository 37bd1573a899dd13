-- prelude: the time, first writes, the head of a lane and its wake-up. It precedes every script.

-- The last key of a call never exists. Without it, a cluster would start a script while it moves the slot, and stop it at the
-- first key that the script has emptied, after other writes. With it, the cluster refuses the call. Scripts do not see this key.
KEYS[#KEYS] = nil

-- Redis' time in ms, and in microseconds as every reply begins with it. In tests ARGV[1] replaces it.
local time = redis.call('TIME')
local now, micros = time[1] * 1000 + math.floor(time[2] / 1000), string.format('%.0f', time[1] * 1000000 + time[2])
if ARGV[1] ~= '' then
  now, micros = tonumber(ARGV[1]), ARGV[1] .. '000'
end

-- The first write of a script. Returns an error reply if Redis is full, else nil and the result of the command. Redis checks
-- maxmemory only before the first write of a script. A command that frees memory or changes nothing therefore lets all later
-- writes pass.
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

-- Calls a command with a key, an optional option and all elements of a list; does nothing if the list is empty.
local function call_with(list, command, key, option)
  if #list > 0 and option then
    redis.call(command, key, option, unpack(list))
  elseif #list > 0 then
    redis.call(command, key, unpack(list))
  end
end

-- The latest due. The scores of paused tasks are larger.
local last_due = '253402300799999'

-- The earliest due that waits in a lane.
local function head_of(due)
  return redis.call('ZRANGEBYSCORE', due, '(0', last_due, 'WITHSCORES', 'LIMIT', 0, 1)[2]
end

-- The score of a row that may be missing, unless it is that of a paused task.
local function unless_paused(score)
  return score and #score < 16 and score or nil
end

-- The earliest due of lists of due, id, due, id..., without these ids.
local function earliest_of(lists, without)
  local earliest, least, last = nil, math.huge, nil
  for _, list in ipairs(lists) do
    for i = 1, #list, 2 do
      -- Many have the same due; compare the string once.
      if list[i] ~= last and not without[list[i + 1]] then
        last = list[i]
        local ms = tonumber(last)
        if ms < least then
          earliest, least = last, ms
        end
      end
    end
  end
  return earliest
end

-- Wakes the claimers of a lane after `earliest` was written; `head` is the head before that.
local function wake(channel, lane, earliest, head)
  -- Also if the head was due already: a claimer may have gone past it and wait for a later one.
  if earliest and (not head or tonumber(earliest) < tonumber(head) or tonumber(head) <= now) then
    redis.pcall('PUBLISH', channel, lane .. ' ' .. earliest)
  end
end
