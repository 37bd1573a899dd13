-- revisions: what two records of one task have to do with each other.

-- Where what was asked for ends: behind it stands the trace of the request (flag 8), which puts do not compare.
local function end_of(record)
  return #record - (bit.band(string.byte(record, 2), 8) ~= 0 and 26 or 0)
end

-- Whether two records ask for the same. Compared in parts: of one of megabytes a part differs soon, or is soon forgotten.
local function ask_the_same(one, other)
  local upto = end_of(one)
  if upto ~= end_of(other) then
    return false
  end
  for from = 31, upto, 65536 do
    local to = math.min(from + 65535, upto)
    if string.sub(one, from, to) ~= string.sub(other, from, to) then
      return false
    end
  end
  return true
end

-- A record with the next revision of the one that it replaces, and the time at which that one was created.
local function next_revision(record, former)
  local revision = struct.pack('>I4', struct.unpack('>I4', former, 3) + 1)
  return string.sub(record, 1, 2) .. revision .. string.sub(former, 7, 14) .. string.sub(record, 15)
end
