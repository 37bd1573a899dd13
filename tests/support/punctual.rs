//! `punctual serve` processes: configured by a file, waited for, signalled and killed. They stop with the test.

use std::net::{Ipv4Addr, TcpStream};
use std::path::PathBuf;
use std::time::Duration;

use punctual_lab::servers::Keeper;

use super::http::Api;
use super::patient;
use super::server::free_port;

/// The program that the instances run: that of this build, or another one, as where `make attack` measures.
fn program() -> String {
    std::env::var("PUNCTUAL_TEST_BINARY").unwrap_or_else(|_| env!("CARGO_BIN_EXE_punctual").to_owned())
}

/// A running instance. It is killed when this value is dropped or the test process dies.
pub(crate) struct Punctual {
    keeper: Keeper,
    /// Its exit code, or 128 plus the number of the signal that ended it.
    ended: Option<i32>,
    /// The port of its API on 127.0.0.1.
    pub(crate) port: u16,
}

impl Punctual {
    /// Starts `punctual serve` with a configuration file without the listen address. Returns once the instance is
    /// ready.
    pub(crate) fn start(config: &str) -> Punctual {
        let mut instance = Punctual::start_unready(config);
        instance.until("ready", |instance| instance.api().ready().is_some_and(|answer| answer.status == 200));
        instance
    }

    /// Starts an instance and returns once its API listens, ready or not.
    pub(crate) fn start_unready(config: &str) -> Punctual {
        Punctual::start_unready_in(&[], config)
    }

    /// Starts an instance with more environment variables (`["NAME=value"]`); returns once its API listens.
    pub(crate) fn start_unready_in(environment: &[String], config: &str) -> Punctual {
        let mut instance = Punctual::spawn_in(environment, config);
        instance.until("listening", |instance| TcpStream::connect((Ipv4Addr::LOCALHOST, instance.port)).is_ok());
        instance
    }

    /// Starts an instance that may end before it listens; returns at once.
    pub(crate) fn spawn_in(environment: &[String], config: &str) -> Punctual {
        let port = free_port();
        let keeper = Keeper::new(|dir| {
            let file = dir.join("punctual.toml");
            std::fs::write(&file, format!("[http]\nlisten = \"127.0.0.1:{port}\"\n{config}"))?;
            let mut command = vec!["env".to_owned()];
            command.extend_from_slice(environment);
            command.extend([program(), "serve".to_owned(), "--config".to_owned(), file.display().to_string()]);
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

    /// The instance id from its first log lines, with which its claim tokens begin.
    pub(crate) fn id(&self) -> String {
        // It listens a moment before it logs its id.
        patient(Duration::from_secs(10), || self.log().contains(" instance="));
        let log = self.log();
        let rest = log.split_once(" instance=").unwrap_or_else(|| panic!("no instance id in the log:\n{log}")).1;
        let id: String =
            rest.trim_start_matches('"').chars().take_while(|&c| c.is_ascii_alphanumeric() || c == '-').collect();
        assert!(!id.is_empty(), "no instance id in the log:\n{log}");
        id
    }

    /// Writes its configuration file again. The instance may read parts of it later.
    pub(crate) fn rewrite(&self, config: &str) {
        let file = self.keeper.log().with_file_name("punctual.toml");
        assert!(file.exists(), "{}", file.display());
        std::fs::write(file, format!("[http]\nlisten = \"127.0.0.1:{}\"\n{config}", self.port)).expect("a file");
    }

    /// A new client of its API.
    pub(crate) fn api(&self) -> Api {
        Api::new(self.port)
    }

    /// Its log so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.keeper.log()).unwrap_or_default()
    }

    /// Log lines so far that contain all these texts.
    pub(crate) fn log_lines(&self, texts: &[&str]) -> Vec<String> {
        let log = self.log();
        log.lines().filter(|line| texts.iter().all(|text| line.contains(text))).map(ToOwned::to_owned).collect()
    }

    /// Waits until `holds` returns true. Fails with the log when the instance ends, and after 2 min.
    pub(crate) fn until(&mut self, what: &str, mut holds: impl FnMut(&mut Punctual) -> bool) {
        let done = patient(Duration::from_secs(120), || {
            self.look();
            assert!(self.ended.is_none(), "`punctual serve` ended: {:?}\n{}", self.ended, self.log());
            holds(self)
        });
        assert!(done, "`punctual serve` is not {what} after 2 min\n{}", self.log());
    }

    /// Checks whether it has ended.
    fn look(&mut self) {
        self.ended = self.ended.or_else(|| self.keeper.ended().expect("its end is reported"));
    }

    /// Sends a signal by name: `STOP`, `CONT`, `TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        assert!(self.ended.is_none(), "`punctual serve` ended before: {:?}", self.ended);
        self.keeper.signal(signal).expect("it can be signalled");
    }

    /// Kills it with SIGKILL.
    pub(crate) fn kill(&mut self) {
        if self.ended.is_none() {
            self.keeper.signal("KILL").expect("it can be killed");
            self.wait();
        }
    }

    /// Waits up to 60 s for its end; returns its exit code, or 128 plus the number of the signal that ended it.
    pub(crate) fn wait(&mut self) -> i32 {
        patient(Duration::from_secs(60), || {
            self.look();
            self.ended.is_some()
        });
        self.ended.unwrap_or_else(|| panic!("`punctual serve` runs on\n{}", self.log()))
    }

    /// Number of its threads with this name.
    pub(crate) fn threads(&self, name: &str) -> usize {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid())).expect("its threads");
        let names = threads.filter_map(|thread| std::fs::read_to_string(thread.ok()?.path().join("comm")).ok());
        names.filter(|found| found.trim() == name).count()
    }

    /// A value in KiB of `/proc/<pid>/status`, in bytes: `VmRSS`, `VmHWM`.
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
