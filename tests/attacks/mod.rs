//! Attacks on a running instance by one caller. The harm to other callers must stay within bounds.
//!
//! Each attack has a short form and a whole one. The whole one, by `make attack`, measures how late tasks of others are,
//! how long their puts take and how much memory the instance needs, prints it, and fails beyond the limits. The short
//! form, which runs with all tests, measures the same and has no limit of time, because machines differ.

/// A test of the whole form of each attack.
macro_rules! whole_forms {
    ($($attack:ident),+) => {
        $(mod $attack {
            #[test]
            #[ignore = "for minutes, with limits of time: make attack"]
            fn whole() {
                super::$attack(crate::attacks::Form::Whole);
            }
        })+
    };
}

mod bodies;
mod connections;
mod dead;
mod names;
mod previews;
mod victim;

use crate::support::published::read_stream;
use crate::support::punctual::Punctual;
use crate::support::redis::RedisServer;
use crate::support::{have, say};
use victim::{Victim, VictimFigures};

/// Begins the lines that `make attack` shows.
const REPORT: &str = "attack:";

/// Maximum memory of an instance under attack.
const MAX_MEMORY: u64 = 300 << 20;

/// How much of an attack is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Short,
    Whole,
}

impl Form {
    fn is_short(self) -> bool {
        self == Form::Short
    }

    /// A number for each form.
    fn choose<T>(self, short: T, whole: T) -> T {
        if self.is_short() { short } else { whole }
    }

    /// Checks a figure, in the whole form.
    fn at_most(self, what: &str, figure: i64, limit: i64) {
        if figure > limit {
            say(&format!("{REPORT} {what}: {figure} is more than {limit}"));
        }
        assert!(self.is_short() || figure <= limit, "{what}: {figure} is more than {limit}");
    }

    /// Checks what a victim noticed, and the memory.
    fn judge(self, instance: &Punctual, before: &VictimFigures, during: &VictimFigures) {
        self.at_most("late, p99 in ms", during.late[1], before.late[1] + 50);
        self.at_most("puts, p99 in ms", during.puts[1], 200);
        self.memory_at_most(instance);
    }

    /// Checks how much memory the instance needed at most.
    fn memory_at_most(self, instance: &Punctual) {
        let most = instance.memory("VmHWM");
        say(&format!("{REPORT} {} MiB of memory at most", most >> 20));
        assert!(most <= MAX_MEMORY, "{} MiB of memory are more than {}", most >> 20, MAX_MEMORY >> 20);
    }
}

/// The attacks that use many destination names mostly wait for their brokers. The others run meanwhile, one after the other.
///
/// Takes more than five seconds: seven attacks, on three brokers that are started for it.
#[test]
fn each_attack_in_its_short_form() {
    std::thread::scope(|scope| {
        for by_names in [names::by_nats, names::by_rabbitmq, names::by_kafka] {
            scope.spawn(move || by_names(Form::Short));
        }
        previews::ask_for_previews(Form::Short);
        connections::hold_all_connections(Form::Short);
        bodies::send_bodies_that_do_not_end(Form::Short);
        dead::fill_the_dead(Form::Short);
    });
}

/// An instance with the lane `victim`, whose tasks go to a stream of the same Redis.
struct Stage {
    redis: RedisServer,
    instance: Punctual,
}

impl Stage {
    /// Starts the instance with additional lines of configuration, the first of which belong to the section `[http]`; `None` if Redis is not installed.
    fn start(config: &str) -> Option<Stage> {
        if !have("redis-server") {
            return None;
        }
        let redis = RedisServer::start(&[]);
        let url = redis.url();
        let instance = Punctual::start(&format!(
            "{config}\n[redis]\nurl = \"{url}\"\n[sinks.default]\nurl = \"{url}\"\n\
             [lanes.default]\nsink = \"default\"\n[lanes.victim]\nsink = \"default\"\n"
        ));
        Some(Stage { redis, instance })
    }

    /// Has a victim put tasks during an attack; prints and returns what the victim measured.
    fn watch(&self, what: &'static str, act: &dyn Fn()) -> VictimFigures {
        let stream = what.replace([' ', ','], "-");
        let victim = Victim::start(&self.instance.api(), "victim", &stream);
        act();
        let figures = victim.stop(&|_| read_stream(self.redis.server.port, &stream));
        say(&format!("{REPORT} {what}: {figures}"));
        figures
    }
}
