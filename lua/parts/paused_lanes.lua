-- paused_lanes: whether a lane is paused.

-- The entry of a lane, "<until ms, 0 for no end> <at ms> <by>\n<note>"; nil if it is not paused, or not any more.
local function pause_of_lane(pauses, lane)
  local entry = redis.call('HGET', pauses, lane)
  local ends = entry and string.match(entry, '^%d+')
  return ends and (ends == '0' or tonumber(ends) > now) and entry or nil
end
