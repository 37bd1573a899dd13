-- dead: stores dead occurrences, in an order within their lanes, and keeps the number and bytes of each lane under its cap.

-- The entry of a dead occurrence in dead:order, and its lane; nothing if its value is damaged.
local function order_of(value, died, key)
  local ends = #value > 34 and 4 + struct.unpack('>I4', value) or 0
  local upto = ends > 34 and ends <= #value and 35 + string.byte(value, 35) or 0
  local lane = upto <= ends and string.sub(value, 36, upto) or ''
  if #lane <= 32 and string.match(lane, '^[a-z0-9-]+$') then
    return string.format('%s %015.0f %s %d', lane, died, key, #value), lane
  end
end

-- Removes a dead occurrence from the order of its lane.
local function leave_order(order, bytes, value, died, key)
  local entry, lane = order_of(value, died, key)
  if entry and redis.call('ZREM', order, entry) == 1 and redis.call('HINCRBY', bytes, lane, -#value) <= 0 then
    redis.call('HDEL', bytes, lane)
  end
end

-- Drops the oldest dead of a lane until it holds at most `cap` of them and `cap_bytes`. Returns how many.
local function drop_oldest(dead, records, order, bytes, lane, size, cap, cap_bytes)
  local from, upto = '[' .. lane .. ' ', '(' .. lane .. '!'
  local count = redis.call('ZLEXCOUNT', order, from, upto)
  -- The last one stays, whatever its size.
  if count <= cap and (size <= cap_bytes or count <= 1) then
    return 0
  end
  local oldest = redis.call('ZRANGEBYLEX', order, from, upto, 'LIMIT', 0, 1000)
  local entries, keys, freed = {}, {}, 0
  for i = 1, #oldest do
    local kept = count - #keys
    if kept <= cap and (size - freed <= cap_bytes or kept <= 1) then
      break
    end
    local key, its_size = string.match(oldest[i], ' (%S+) (%d+)$')
    keys[i], entries[i], freed = key, oldest[i], freed + its_size
  end
  redis.call('ZREM', order, unpack(entries))
  redis.call('HINCRBY', bytes, lane, -freed)
  redis.call('HDEL', records, unpack(keys))
  return redis.call('ZREM', dead, unpack(keys))
end

-- Stores dead occurrences, given as key, value, key, value... Returns how many others that dropped.
local function add_dead(dead, records, order, bytes, list, cap, cap_bytes)
  local stamps, keys, entries, grown, known = {}, {}, {}, {}, {}
  -- A task and its requeued occurrence may have the same key. As with HSET, the last one counts: that with a next due.
  for i = #list - 1, 1, -2 do
    local key, value = list[i], list[i + 1]
    if not known[key] then
      push(stamps, string.format('%.0f', now), key)
      keys[#keys + 1], known[key] = key, true
      local place, lane = order_of(value, now, key)
      if place then
        push(entries, 0, place)
        grown[lane] = (grown[lane] or 0) + #value
      end
    end
  end
  local former = redis.call('HMGET', records, unpack(keys))
  for i = 1, #keys do
    local before = former[i] and redis.call('ZSCORE', dead, keys[i])
    if before then
      leave_order(order, bytes, former[i], before, keys[i])
    end
  end
  redis.call('HSET', records, unpack(list))
  redis.call('ZADD', dead, unpack(stamps))
  call_with(entries, 'ZADD', order)
  local dropped = 0
  for lane, more in pairs(grown) do
    local size = redis.call('HINCRBY', bytes, lane, more)
    dropped = dropped + drop_oldest(dead, records, order, bytes, lane, size, cap, cap_bytes)
  end
  return dropped
end
