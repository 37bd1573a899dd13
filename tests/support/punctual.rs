//! `punctual serve` processes: configured by a file, waited for, signalled, killed, gone with the test.

use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use punctual_lab::servers::Keeper;

use super::http::Api;
use super::patient;
use super::server::free_port;

/// A running instance. Dropping it kills it; the death of the test process does too.
pub(crate) struct Punctual {
    keeper: Keeper,
    /// Its exit code; 128 and the signal's number where one ended it.
    ended: Option<i32>,
    /// The port that its API listens on, on 127.0.0.1.
    pub(crate) port: u16,
}

impl Punctual {
    /// Starts `punctual serve` with a configuration file; it says everything but where to listen. Returns once it is ready.
    pub(crate) fn start(config: &str) -> Punctual {
        let mut instance = Punctual::start_unready(config);
        instance.until("ready", |instance| instance.api().ready().is_some_and(|answer| answer.status == 200));
        instance
    }

    /// Starts one and returns once its API listens, ready or not.
    pub(crate) fn start_unready(config: &str) -> Punctual {
        Punctual::start_unready_in(&[], config)
    }

    /// Starts one with more variables in its environment (`["NAME=value"]`); returns once its API listens.
    pub(crate) fn start_unready_in(environment: &[String], config: &str) -> Punctual {
        let mut instance = Punctual::spawn_in(environment, config);
        instance.until("listening", |instance| TcpStream::connect((Ipv4Addr::LOCALHOST, instance.port)).is_ok());
        instance
    }

    /// Starts one that may end before anybody sees it listening; returns at once.
    pub(crate) fn spawn_in(environment: &[String], config: &str) -> Punctual {
        let port = free_port();
        let keeper = Keeper::new(|dir| {
            let file = dir.join("punctual.toml");
            std::fs::write(&file, format!("[http]\nlisten = \"127.0.0.1:{port}\"\n{config}"))?;
            let mut command = vec!["env".to_owned()];
            command.extend_from_slice(environment);
            command.extend([env!("CARGO_BIN_EXE_punctual"), "serve", "--config"].map(str::to_owned));
            command.push(file.display().to_string());
            Ok(command)
        });
        let keeper = keeper.expect("a folder for the instance");
        keeper.start().expect("it starts");
        Punctual { keeper, ended: None, port }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.keeper.pid().expect("it runs")
    }

    /// The instance id that it logs at its start: what its claim tokens begin with.
    pub(crate) fn id(&self) -> String {
        // It listens a moment before it says so.
        patient(Duration::from_secs(10), || self.log().contains(" instance="));
        let log = self.log();
        let rest = log.split_once(" instance=").unwrap_or_else(|| panic!("no instance id in the log:\n{log}")).1;
        let id: String =
            rest.trim_start_matches('"').chars().take_while(|&c| c.is_ascii_alphanumeric() || c == '-').collect();
        assert!(!id.is_empty(), "no instance id in the log:\n{log}");
        id
    }

    /// Its API, for a client of its own.
    pub(crate) fn api(&self) -> Api {
        Api::new(self.port)
    }

    /// What it has logged so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.keeper.log()).unwrap_or_default()
    }

    /// Lines that it has logged so far and that hold all these words.
    pub(crate) fn log_lines(&self, detail: &[&str]) -> Vec<String> {
        let log = self.log();
        log.lines().filter(|line| detail.iter().all(|word| line.contains(word))).map(ToOwned::to_owned).collect()
    }

    /// Waits until something holds of it; fails at once if it ended, and after 2 min, both with its log.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Punctual) -> bool) {
        let done = patient(Duration::from_secs(120), || {
            self.look();
            assert!(self.ended.is_none(), "`punctual serve` ended: {:?}\n{}", self.ended, self.log());
            holds(self)
        });
        assert!(done, "`punctual serve` is not {what} after 2 min\n{}", self.log());
    }

    /// Looks whether it has ended.
    fn look(&mut self) {
        self.ended = self.ended.or_else(|| self.keeper.ended().expect("its end is told"));
    }

    /// Sends a signal, by name: `STOP`, `CONT`, `TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        assert!(self.ended.is_none(), "`punctual serve` ended before: {:?}", self.ended);
        self.keeper.signal(signal).expect("it can be signalled");
    }

    /// Ends it at once, as kill -9 does.
    pub(crate) fn kill(&mut self) {
        if self.ended.is_none() {
            self.keeper.signal("KILL").expect("it can be killed");
            self.wait();
        }
    }

    /// Waits for its end, for up to 60 s; its exit code, or 128 and the number of the signal that ended it.
    pub(crate) fn wait(&mut self) -> i32 {
        patient(Duration::from_secs(60), || {
            self.look();
            self.ended.is_some()
        });
        self.ended.unwrap_or_else(|| panic!("`punctual serve` runs on\n{}", self.log()))
    }

    /// How many of its threads bear this name.
    pub(crate) fn threads(&self, name: &str) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|found| found.trim() == name).count()
    }

    /// A line of `/proc/<pid>/status` that counts KiB, in bytes: `VmRSS`, `VmHWM`.
    pub(crate) fn memory(&self, name: &str) -> u64 {
        let status =
            std::fs::read_to_string(PathBuf::from(format!("/proc/{}/status", self.pid()))).expect("its status");
        let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':')).expect("the line");
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().expect("a number of KiB");
        kib * 1024
    }
}

impl Drop for Punctual {
    #[expect(clippy::print_stdout, reason = "the test runner keeps it, and shows it with the failure")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            let log = self.log();
            let tail = log.get(log.len().saturating_sub(6000)..).unwrap_or(&log);
            println!("--- the end of the log of the instance on port {}:\n{tail}", self.port);
        }
    }
}
