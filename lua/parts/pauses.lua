-- pauses: paused tasks. While no claim holds one, its score is 10^15 + its due. Claims ask for scores up to now, so they do not see it.

-- The score of a paused task with this due. Both functions work on text, because a due is never converted to a number and back.
local function paused_score(due)
  return '1' .. string.rep('0', 15 - #due) .. due
end

-- The due of a task with this score, which is not negative.
local function due_of_score(score)
  return #score == 16 and string.match(score, '^10*(.*)$') or score
end

-- Whether an entry of `pauses` keeps a task with this due from being claimed. A trigger lets one due pass.
local function is_kept_back(pause, due)
  return pause and string.match(pause, '^%d+') ~= due
end

-- After dues were written: gives paused tasks their scores. `lists` have due, id, due, id... Returns the set of these ids.
local function keep_paused(pauses, due, lists)
  local kept = {}
  for _, list in ipairs(lists) do
    local ids, scores = {}, {}
    for i = 2, #list, 2 do
      ids[i / 2] = list[i]
    end
    local found = #ids > 0 and redis.call('HMGET', pauses, unpack(ids)) or {}
    for i = 1, #ids do
      if is_kept_back(found[i], list[2 * i - 1]) then
        push(scores, paused_score(list[2 * i - 1]), ids[i])
        kept[ids[i]] = true
      end
    end
    call_with(scores, 'ZADD', due, 'XX')
  end
  return kept
end
