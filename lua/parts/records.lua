-- records: how many records one call may read.

-- The largest record that may stand in a hash of tasks, in bytes; huge where an older version did not tell.
local function largest_of(tasks, largest)
  return redis.call('EXISTS', tasks) == 0 and 0 or tonumber(redis.call('GET', largest) or '') or math.huge
end

-- How many of ids[from] .. ids[upto] may be read at once, 64 at most, where `bytes` of `limit` are read already: as many as
-- fit if each is the largest. Where those are fewer than 4, Redis is asked for their lengths: reading in vain blocks it, too.
local function fits(tasks, ids, from, upto, bytes, limit, largest)
  local most, surely = math.min(64, upto - from + 1), math.floor((limit - bytes) / largest)
  if surely >= 4 then
    return math.min(most, surely)
  end
  local sum = bytes
  for i = 1, most do
    local length = redis.call('HSTRLEN', tasks, ids[from + i - 1])
    sum = sum + length
    -- One without a record takes no room.
    if length > 0 and sum > limit then
      -- The first whatever its size.
      return bytes == 0 and i == 1 and 1 or i - 1
    end
  end
  return most
end
