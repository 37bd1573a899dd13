-- revisions: compares and updates the records of one task.

-- Where the user's part of a record ends. Behind it is the trace of the request (flag 8), which puts do not compare.
local function end_of(record)
  return #record - (bit.band(string.byte(record, 2), 8) ~= 0 and 26 or 0)
end

-- Whether two records have the same user's part. Compared in pieces, so that large records usually differ early and no large
-- copies are made.
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

-- The record with the next revision and the creation time of the one it replaces.
local function next_revision(record, former)
  local revision = struct.pack('>I4', struct.unpack('>I4', former, 3) + 1)
  return string.sub(record, 1, 2) .. revision .. string.sub(former, 7, 14) .. string.sub(record, 15)
end
