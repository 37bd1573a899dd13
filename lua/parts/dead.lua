-- dead: the order of the dead within their lanes, and how many bytes each lane has.

-- The entry of a dead occurrence in dead:order, and its lane; nothing if its value is damaged.
local function order_of(value, buried, key)
  local ends = #value > 34 and 4 + struct.unpack('>I4', value) or 0
  local upto = ends > 34 and ends <= #value and 35 + string.byte(value, 35) or 0
  local lane = upto <= ends and string.sub(value, 36, upto) or ''
  if #lane <= 32 and string.match(lane, '^[a-z0-9-]+$') then
    return string.format('%s %015.0f %s %d', lane, buried, key, #value), lane
  end
end

-- Removes a dead occurrence from the order of its lane.
local function leave_order(order, bytes, value, buried, key)
  local entry, lane = order_of(value, buried, key)
  if entry and redis.call('ZREM', order, entry) == 1 and redis.call('HINCRBY', bytes, lane, -#value) <= 0 then
    redis.call('HDEL', bytes, lane)
  end
end
