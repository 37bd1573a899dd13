//! The bodies of bulk requests for tasks in the OpenAPI document. No value of these types is ever made.

#![expect(dead_code, reason = "only for the OpenAPI document")]

use utoipa::ToSchema;

use super::task::MissedSchema;

/// Defines bodies that select tasks. Each has the same members, and perhaps more.
macro_rules! select_tasks {
    ($($(#[$meta:meta])* $name:ident { $($more:tt)* })*) => {
        $(#[derive(ToSchema)]
        #[serde(deny_unknown_fields)]
        $(#[$meta])*
        pub(in crate::http) struct $name {
            /// All of them. Excludes the members that select.
            #[schema(required = false, default = false)]
            all: bool,
            /// Counts the matches and changes nothing.
            #[schema(required = false, default = false)]
            dry_run: bool,
            /// Of this lane.
            #[schema(required = false, pattern = "^[a-z0-9-]{1,32}$")]
            lane: String,
            /// With this status. An overdue task is scheduled, too.
            #[schema(required = false, value_type = super::enums::ListStatus)]
            status: String,
            /// Whose ids begin with this.
            #[schema(required = false, min_length = 1, max_length = 200)]
            prefix: String,
            /// Whose ids contain this.
            #[schema(required = false, min_length = 1, max_length = 200)]
            contains: String,
            /// Due at this time or later.
            #[schema(required = false, format = DateTime)]
            due_from: String,
            /// Due before this time.
            #[schema(required = false, format = DateTime)]
            due_to: String,
            /// The `next_cursor` of the previous answer.
            #[schema(required = false)]
            cursor: String,
            $($more)*
        })*
    };
}

select_tasks! {
    /// Selects tasks, by at least one of `lane`, `status`, `prefix`, `contains`, `due_from` and `due_to`, or with
    /// `"all": true`.
    #[schema(as = TasksCancelRequest)]
    TasksCancelSchema {}

    /// Selects the tasks to pause, as for a cancel.
    #[schema(as = TasksPauseRequest)]
    TasksPauseSchema {
        /// Why, at most 200 characters in one line.
        #[schema(required = false, max_length = 200)]
        note: String,
    }

    /// Selects the tasks to resume, as for a cancel.
    #[schema(as = TasksResumeRequest)]
    TasksResumeSchema {
        /// What happens to the occurrences that they missed.
        #[schema(required = false, default = "catch_up")]
        missed: MissedSchema,
    }
}
