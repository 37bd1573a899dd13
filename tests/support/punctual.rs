//! `punctual serve` processes: configured by a file, waited for, signalled, killed, gone with the test.

use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ExitStatus};
use std::time::Duration;

use tempfile::TempDir;

use super::http::Api;
use super::patient;
use super::server::{free_port, signal_pid, spawn};

/// A running instance. Dropping it kills it; the death of the test process does too.
pub(crate) struct Punctual {
    child: Child,
    ended: Option<ExitStatus>,
    /// The port that its API listens on, on 127.0.0.1.
    pub(crate) port: u16,
    dir: TempDir,
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
        let dir = TempDir::with_prefix("punctual-test-").expect("a folder for the instance");
        let port = free_port();
        let file = dir.path().join("punctual.toml");
        std::fs::write(&file, format!("[http]\nlisten = \"127.0.0.1:{port}\"\n{config}"))
            .expect("a configuration file");
        let command = [env!("CARGO_BIN_EXE_punctual"), "serve", "--config", &file.display().to_string()];
        let output = std::fs::File::create(dir.path().join("output.log")).expect("a log file");
        let command = command.iter().map(|&argument| argument.to_owned());
        let command = ["env".to_owned()].into_iter().chain(environment.iter().cloned()).chain(command).collect();
        let child = spawn(command, dir.path().to_owned(), output);
        Punctual { child, ended: None, port, dir }
    }

    /// Its process id.
    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
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
        std::fs::read_to_string(self.dir.path().join("output.log")).expect("a readable log")
    }

    /// Lines that it has logged so far and that hold all these words.
    pub(crate) fn log_lines(&self, words: &[&str]) -> Vec<String> {
        let log = self.log();
        log.lines().filter(|line| words.iter().all(|word| line.contains(word))).map(ToOwned::to_owned).collect()
    }

    /// Waits until something holds of it; fails at once if it ended, and after 2 min, both with its log.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Punctual) -> bool) {
        let done = patient(Duration::from_secs(120), || {
            if self.ended.is_none() {
                self.ended = self.child.try_wait().expect("a child can be waited for");
            }
            assert!(self.ended.is_none(), "`punctual serve` ended: {:?}\n{}", self.ended, self.log());
            holds(self)
        });
        assert!(done, "`punctual serve` is not {what} after 2 min\n{}", self.log());
    }

    /// Sends a signal, by name: `STOP`, `CONT`, `TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        assert!(self.ended.is_none(), "`punctual serve` ended before: {:?}", self.ended);
        signal_pid(self.pid(), signal);
    }

    /// Ends it at once, as kill -9 does.
    pub(crate) fn kill(&mut self) {
        if self.ended.is_none() {
            self.child.kill().expect("a child can be killed");
            self.ended = Some(self.child.wait().expect("a child can be waited for"));
        }
    }

    /// Waits for its end, for up to 60 s.
    pub(crate) fn wait(&mut self) -> ExitStatus {
        patient(Duration::from_secs(60), || {
            self.ended = self.ended.or_else(|| self.child.try_wait().expect("a child can be waited for"));
            self.ended.is_some()
        });
        self.ended.unwrap_or_else(|| panic!("`punctual serve` runs on\n{}", self.log()))
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
        self.kill();
    }
}
