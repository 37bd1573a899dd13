-- The scripts in lua/ run inside Redis: Lua 5.1 with these globals and no others.
std = "lua51"
globals = {}
read_globals = { "redis", "KEYS", "ARGV", "cjson", "cmsgpack", "struct", "bit" }
max_line_length = 140

-- Redis runs the parts before the script that names them, so a script may use the local names of its parts.
local shared = {
  "now", "micros", "first_write", "head_of", "wake", "lane_of", "due_by_lane", "rank_after", "largest_of", "fits", "write_claim", "left_out",
  "push", "call_with", "ask_the_same", "next_revision", "write_marks", "was_handed_out", "mark_of_expired", "order_of", "leave_order", "add_dead",
  "earliest_of", "last_overdue", "counts_of", "is_listed", "pause_of_lane",
  "last_due", "unless_paused", "paused_score", "due_of_score", "is_kept_back", "keep_paused",
}
for _, name in ipairs({ "browse", "cancel", "claim", "claim_suspects", "count", "discard", "extend", "get", "glance", "move_due", "pause", "pause_lane", "put", "reap",
  "requeue", "scan", "settle", "show", "upcoming" }) do
  files["lua/" .. name .. ".lua"].read_globals = shared
end
files["lua/parts/*.lua"] = { ignore = { "211", "231" }, read_globals = shared }
-- It removes the last key, see there.
files["lua/parts/prelude.lua"] = { globals = { "KEYS" } }
