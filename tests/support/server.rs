//! A server process of the test's own: started on a free port, signalled at will, gone with the test.

use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// A running server. Dropping it kills it; the death of the test process does too.
pub(crate) struct Server {
    child: Option<Child>,
    command: Vec<String>,
    ready: fn(u16) -> bool,
    /// The port it listens on, on 127.0.0.1.
    pub(crate) port: u16,
    dir: TempDir,
}

impl Server {
    /// Starts a program; `arguments` gets the free port and the server's own folder. Returns when the port answers.
    pub(crate) fn start(program: &str, arguments: impl Fn(u16, &Path) -> Vec<String>) -> Server {
        Server::start_until(|port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok(), program, arguments)
    }

    /// Starts a program whose port answers before it is of use; returns when `ready` says so of the port.
    pub(crate) fn start_until(
        ready: fn(u16) -> bool,
        program: &str,
        arguments: impl Fn(u16, &Path) -> Vec<String>,
    ) -> Server {
        let dir = TempDir::with_prefix("punctual-test-").expect("a folder for the server");
        let port = free_port();
        let mut command = vec![program.to_owned()];
        command.extend(arguments(port, dir.path()));
        let mut server = Server { child: None, command, ready, port, dir };
        server.restart();
        server
    }

    /// Starts it (again) on the same port, with the same folder; returns when it is ready.
    #[expect(clippy::disallowed_methods, reason = "servers are waited for in real time, whatever a test pauses")]
    pub(crate) fn restart(&mut self) {
        self.kill();
        let log = std::fs::File::options().create(true).append(true).open(self.log()).expect("a log file");
        self.child = Some(spawn(self.command.clone(), self.dir.path().to_owned(), log));
        let deadline = Instant::now() + Duration::from_secs(180);
        while !(self.ready)(self.port) {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().ok().flatten());
            let log = || std::fs::read_to_string(self.log()).unwrap_or_default();
            assert!(ended.is_none(), "`{}` ended: {ended:?}\n{}", self.command[0], log());
            assert!(Instant::now() < deadline, "`{}` is not ready on {}\n{}", self.command[0], self.port, log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Ends it in its own way, as an operator would; in 60 s, or it is killed.
    #[expect(clippy::disallowed_methods, reason = "servers are waited for in real time, whatever a test pauses")]
    pub(crate) fn shut_down(&mut self) {
        self.signal("TERM");
        let deadline = Instant::now() + Duration::from_secs(60);
        let child = self.child.as_mut().expect("a running server");
        while child.try_wait().expect("a child can be waited for").is_none() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
        }
        self.kill();
    }

    /// Ends it at once, as kill -9 does.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    /// Sends a signal, by name: `STOP`, `CONT`, `TERM`.
    pub(crate) fn signal(&self, signal: &str) {
        let pid = self.child.as_ref().expect("a running server").id();
        signal_pid(pid, signal);
    }

    /// The file that its output goes to.
    pub(crate) fn log(&self) -> PathBuf {
        self.dir.path().join("output.log")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
    }
}

/// Sends a signal, by name, to a process.
pub(crate) fn signal_pid(pid: u32, signal: &str) {
    let status = Command::new("kill").args([format!("-{signal}"), pid.to_string()]).status().expect("kill runs");
    assert!(status.success(), "kill -{signal} {pid}");
}

/// A port that is free now. Each is handed out once in this process; below those that the kernel gives to whoever connects
/// and those that `punctual-lab` chooses from, since one of them could take the port of a server
/// that is being started (again).
pub(crate) fn free_port() -> u16 {
    static TAKEN: std::sync::Mutex<Vec<u16>> = std::sync::Mutex::new(Vec::new());
    let mut taken = TAKEN.lock().expect("no test panics holding it");
    loop {
        let port = rand::random_range(10_240..20_000);
        if !taken.contains(&port) && TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            taken.push(port);
            return port;
        }
    }
}

/// What is asked of the keeper: a command line, where to run it, where its output goes, and where to hand the child.
type Order = (Vec<String>, PathBuf, std::fs::File, mpsc::Sender<std::io::Result<Child>>);

/// Starts a process from a thread that lives as long as the test process, so that the kernel ends it with that:
/// `setpriv --pdeathsig` watches the thread that started it, and a test's own thread ends with the test.
pub(crate) fn spawn(command: Vec<String>, dir: PathBuf, output: std::fs::File) -> Child {
    static KEEPER: OnceLock<mpsc::Sender<Order>> = OnceLock::new();
    let keeper = KEEPER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        std::thread::spawn(move || {
            for (command, dir, output, reply) in inbox {
                let child = output.try_clone().and_then(|errors| {
                    Command::new("setpriv")
                        .args(["--pdeathsig", "KILL", "--"])
                        .args(&command)
                        .current_dir(dir)
                        .stdin(Stdio::null())
                        .stdout(output)
                        .stderr(errors)
                        .spawn()
                });
                reply.send(child).expect("whoever ordered waits");
            }
        });
        orders
    });
    let (reply, child) = mpsc::channel();
    let program = command[0].clone();
    keeper.send((command, dir, output, reply)).expect("the keeper lives");
    child.recv().expect("the keeper answers").unwrap_or_else(|error| panic!("cannot start `{program}`: {error}"))
}
