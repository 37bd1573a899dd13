-- lanes: the lane of a record, and the key of a lane.

local function lane_of(record)
  return string.sub(record, 32, 31 + (string.byte(record, 31) or 0))
end

-- The keys of lanes by name: keys from KEYS[key] on, names from ARGV[name] on.
local function due_by_lane(key, name)
  local due_key_of = {}
  for i = key, #KEYS do
    due_key_of[ARGV[name + i - key]] = KEYS[i]
  end
  return due_key_of
end
