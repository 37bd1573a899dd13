-- places: positions in a sorted set, as (ms, member).

-- Compares bytes, like Redis; Lua would compare by the server's locale.
local function is_after(one, other)
  for i = 1, math.min(#one, #other) do
    local a, b = string.byte(one, i), string.byte(other, i)
    if a ~= b then
      return a > b
    end
  end
  return #one > #other
end

-- The rank of the first member behind (ms, member), whether that member exists or not. Uses binary search among the members of
-- the same millisecond, because there may be many.
local function rank_after(zset, ms, member)
  local low = redis.call('ZCOUNT', zset, '-inf', '(' .. ms)
  local high = low + redis.call('ZCOUNT', zset, ms, ms)
  while low < high do
    local middle = math.floor((low + high) / 2)
    if is_after(redis.call('ZRANGE', zset, middle, middle)[1], member) then
      high = middle
    else
      low = middle + 1
    end
  end
  return low
end
