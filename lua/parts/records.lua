-- records: how many records one call may read.

-- Upper bound of the size of any stored record, in bytes; huge if an older version has not stored it.
local function largest_of(tasks, largest)
  return redis.call('EXISTS', tasks) == 0 and 0 or tonumber(redis.call('GET', largest) or '') or math.huge
end

-- How many of ids[from] .. ids[upto] can be read at once, at most 64, if `bytes` of `limit` are used already. Assumes that each
-- has the maximum size. If that allows fewer than 4, it asks Redis for their lengths, because reading records that do not fit
-- blocks Redis too.
local function fits(tasks, ids, from, upto, bytes, limit, largest)
  local most, surely = math.min(64, upto - from + 1), math.floor((limit - bytes) / largest)
  if surely >= 4 then
    return math.min(most, surely)
  end
  local sum = bytes
  for i = 1, most do
    local length = redis.call('HSTRLEN', tasks, ids[from + i - 1])
    sum = sum + length
    -- A member without a record needs no room.
    if length > 0 and sum > limit then
      -- The first one is read whatever its size.
      return bytes == 0 and i == 1 and 1 or i - 1
    end
  end
  return most
end
