//! A child process in a folder of its own. Both are removed when this process ends, for whatever reason.

use std::ffi::OsStr;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::fs::DirBuilderExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use parking_lot::Mutex;

/// Starts a program on request and forwards signals. Ends it and removes its folder once stdin is closed, which the
/// kernel does even when this process is killed.
const KEEPER: &str = r#"
dir=$1; shift
server=
while read -r word; do
  case $word in
    start) "$@" </dev/null >>"$dir/output.log" 2>&1 & server=$!; echo "$server" ;;
    wait) wait "$server"; echo "$?"; server= ;;
    *) kill -"$word" "$server"; echo "$?" ;;
  esac
done
[ -z "$server" ] || kill -KILL "$server"
wait
rm -rf -- "$dir"
"#;

/// A program that can be started, signalled and started again. Dropping it ends it and removes its folder.
///
/// Its stdout and stderr are in `output.log` in its folder.
#[derive(Debug)]
pub struct Keeper {
    shell: Child,
    pipes: Mutex<Pipes>,
    dir: PathBuf,
}

#[derive(Debug)]
struct Pipes {
    orders: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
    /// Set from the start of the program until its end has been waited for.
    pid: Option<u32>,
}

impl Keeper {
    /// Creates a folder for its owner only; starts nothing yet.
    ///
    /// # Errors
    /// If no temporary folder can be created, or there is no `sh`.
    pub fn new<A: AsRef<OsStr>>(prepare: impl FnOnce(&Path) -> io::Result<Vec<A>>) -> io::Result<Keeper> {
        let dir = std::env::temp_dir().join(format!("punctual-{:016x}", rand::random::<u64>()));
        std::fs::DirBuilder::new().mode(0o700).create(&dir)?;
        let prepared = prepare(&dir).and_then(|program| Keeper::shell(&dir, &program));
        if prepared.is_err()
            && let Err(error) = std::fs::remove_dir_all(&dir)
        {
            tracing::debug!(%error, dir = %dir.display(), "cannot delete the folder of a server");
        }
        prepared
    }

    fn shell<A: AsRef<OsStr>>(dir: &Path, program: &[A]) -> io::Result<Keeper> {
        let mut command = Command::new("sh");
        command.args(["-c", KEEPER, "sh"]).arg(dir).args(program).current_dir(dir);
        // The program gets its whole configuration from the caller.
        let own = |name: &OsStr| name.to_string_lossy().starts_with("PUNCTUAL_");
        std::env::vars_os().filter(|(name, _)| own(name)).for_each(|(name, _)| {
            command.env_remove(name);
        });
        // A process group of its own: Ctrl-C in the terminal is for this process, which needs the program to end in
        // order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut shell = command.spawn()?;
        let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
        let answers = BufReader::new(shell.stdout.take().ok_or_else(broken)?);
        let pipes = Mutex::new(Pipes { orders: shell.stdin.take(), answers, pid: None });
        Ok(Keeper { shell, pipes, dir: dir.to_owned() })
    }

    /// The folder.
    #[cfg(test)]
    fn dir(&self) -> &Path {
        &self.dir
    }

    /// The file with its output.
    pub fn log(&self) -> PathBuf {
        self.dir.join("output.log")
    }

    /// Starts the program.
    ///
    /// # Errors
    /// If a former start has not been waited for, because the shell would forget it; if the shell is gone.
    pub fn start(&self) -> io::Result<()> {
        let mut pipes = self.pipes.lock();
        if pipes.pid.is_some() {
            return Err(io::Error::other("it has been started already"));
        }
        let pid = pipes.ask("start")?;
        pipes.pid = Some(pid.parse().map_err(io::Error::other)?);
        Ok(())
    }

    /// Its process id, while it runs.
    pub fn pid(&self) -> Option<u32> {
        self.pipes.lock().pid
    }

    /// Sends a signal, by name: `KILL`, `STOP`, `CONT`, `TERM`. Has no effect on a program that has ended.
    ///
    /// # Errors
    /// If the shell is gone.
    pub fn signal(&self, name: &str) -> io::Result<()> {
        let mut pipes = self.pipes.lock();
        if pipes.pid.is_some() {
            pipes.ask(name)?;
        }
        Ok(())
    }

    /// The exit code once it has ended; 128 plus the signal's number if a signal ended it. `None` while it runs, and if
    /// the code was returned before.
    ///
    /// # Errors
    /// If the shell is gone.
    pub fn ended(&self) -> io::Result<Option<i32>> {
        let mut pipes = self.pipes.lock();
        match pipes.pid {
            Some(pid) if !runs(pid) => {
                let code = pipes.ask("wait")?;
                pipes.pid = None;
                code.parse().map(Some).map_err(io::Error::other)
            }
            _ => Ok(None),
        }
    }
}

impl Pipes {
    fn ask(&mut self, word: &str) -> io::Result<String> {
        let orders = self.orders.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        orders.write_all(format!("{word}\n").as_bytes())?;
        let mut answer = String::new();
        match self.answers.read_line(&mut answer)? {
            0 => Err(io::ErrorKind::UnexpectedEof.into()),
            _ => Ok(answer.trim().to_owned()),
        }
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        let pipes = self.pipes.get_mut();
        drop(pipes.orders.take());
        if let Err(error) = self.shell.wait() {
            tracing::warn!(%error, "cannot wait for the shell of a server to end");
        }
    }
}

/// Whether a child of the shell still runs. One that ended is a zombie until it is waited for.
fn runs(pid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{pid}/stat")) else { return false };
    // The name is in parentheses and may contain anything; the state is the letter behind it.
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    !matches!(state, Some('Z' | 'X') | None)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn wait(keeper: &Keeper) -> i32 {
        for _ in 0..2000 {
            if let Some(code) = keeper.ended().unwrap() {
                return code;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("it runs on");
    }

    fn sleeper() -> Keeper {
        Keeper::new(|_| Ok(vec!["sh", "-c", "echo begun; exec sleep 60"])).unwrap()
    }

    #[test]
    fn a_keeper_starts_kills_and_restarts_its_process() {
        let keeper = sleeper();
        assert_eq!((keeper.pid(), keeper.ended().unwrap()), (None, None));
        for round in 1..=2 {
            keeper.start().unwrap();
            assert_eq!(keeper.ended().unwrap(), None);
            while std::fs::read_to_string(keeper.log()).unwrap_or_default().matches("begun").count() < round {
                std::thread::yield_now();
            }
            keeper.signal("KILL").unwrap();
            assert_eq!(wait(&keeper), 128 + 9);
            assert_eq!((keeper.pid(), keeper.ended().unwrap()), (None, None));
            keeper.signal("KILL").unwrap();
        }
    }

    #[test]
    fn dropping_a_keeper_ends_a_stopped_process_and_deletes_its_folder() {
        let keeper = sleeper();
        keeper.start().unwrap();
        keeper.signal("STOP").unwrap();
        let (dir, pid) = (keeper.dir().to_owned(), keeper.pid().unwrap());
        assert!(dir.is_dir() && runs(pid));
        drop(keeper);
        assert!(!dir.exists() && !runs(pid));
    }

    #[test]
    fn a_folder_is_deleted_if_the_keeper_cannot_be_created() {
        let mut made = PathBuf::new();
        let failed = Keeper::new(|dir| {
            made = dir.to_owned();
            Err::<Vec<String>, _>(io::Error::other("no"))
        });
        assert!(failed.is_err() && !made.exists());
    }
}
