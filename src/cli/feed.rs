//! The body of a batch: reads a file or stdin.

use std::io::{self, Read};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc as blocking;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{Stream, stream};
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

use super::Failure;

/// Some editors begin a file with it.
pub(super) const BYTE_ORDER_MARK: &str = "\u{feff}";

/// Size of one read in bytes, and maximum number of parts that wait to be sent or printed.
const PART_BYTES: usize = 64 << 10;
pub(super) const MAX_PARTS: usize = 8;

/// After this long without input a blank is sent, because an instance gives up on a body that does not continue.
const BLANK_PAUSE: Duration = Duration::from_secs(10);

/// How far the file has been read.
#[derive(Default)]
pub(super) struct Progress {
    /// Number of non-blank lines.
    pub(super) lines: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) ended: AtomicBool,
    pub(super) broken: OnceLock<String>,
}

pub(super) fn open(file: &Path) -> Result<(Box<dyn Read + Send>, Option<u64>), Failure> {
    if file.as_os_str() == "-" {
        return Ok((Box::new(io::stdin()), None));
    }
    let opened = std::fs::File::open(file).and_then(|opened| {
        let metadata = opened.metadata()?;
        if metadata.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { Ok((opened, metadata)) }
    });
    let (opened, metadata) = opened.map_err(|error| {
        Failure::usage(anyhow::Error::from(error).context(format!("cannot read the tasks from `{}`", file.display())))
    })?;
    Ok((Box::new(opened), metadata.is_file().then_some(metadata.len())))
}

/// Reads to the end, as fast as the parts are consumed.
pub(super) fn read(
    mut input: Box<dyn Read + Send>,
    parts: &mpsc::Sender<io::Result<Bytes>>,
    lines: &blocking::Sender<u64>,
    progress: &Progress,
) {
    let (mut line, mut blank, mut buffer) = (1, true, vec![0; PART_BYTES]);
    loop {
        match input.read(&mut buffer) {
            Ok(0) => return progress.ended.store(true, Ordering::Release),
            Ok(length) => {
                let mut part = &buffer[..length];
                if progress.bytes.fetch_add(length as u64, Ordering::Relaxed) == 0 {
                    part = part.strip_prefix(BYTE_ORDER_MARK.as_bytes()).unwrap_or(part);
                }
                for (number, piece) in part.split(|&byte| byte == b'\n').enumerate() {
                    if number > 0 {
                        (line, blank) = (line + 1, true);
                    }
                    if blank && !piece.trim_ascii().is_empty() {
                        blank = false;
                        progress.lines.fetch_add(1, Ordering::Relaxed);
                        lines.send(line).ok();
                    }
                }
                if parts.blocking_send(Ok(Bytes::copy_from_slice(part))).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => {
                progress.broken.set(error.to_string()).ok();
                parts.blocking_send(Err(error)).ok();
                return;
            }
        }
    }
}

/// The parts of the file. During a pause between two lines it yields blanks, which the instance ignores.
pub(super) fn paced(
    inbox: mpsc::Receiver<io::Result<Bytes>>,
    begun: watch::Receiver<bool>,
) -> impl Stream<Item = io::Result<Bytes>> + Send {
    stream::unfold((inbox, begun, true), |(mut inbox, begun, mut between)| async move {
        loop {
            match timeout(BLANK_PAUSE, inbox.recv()).await {
                Ok(part) => {
                    let part = part?;
                    between = part.as_ref().is_ok_and(|part| part.ends_with(b"\n"));
                    return Some((part, (inbox, begun, between)));
                }
                // No blanks before the answer begins, so that an instance that is down is noticed.
                Err(_) if between && *begun.borrow() => {
                    return Some((Ok(Bytes::from_static(b" ")), (inbox, begun, between)));
                }
                Err(_) => {}
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use futures_util::StreamExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn blanks_keep_a_pause_between_two_lines_alive() {
        let (parts, inbox) = mpsc::channel(1);
        let (begun, begins) = watch::channel(false);
        let mut body = Box::pin(paced(inbox, begins));
        assert!(timeout(BLANK_PAUSE * 5, body.next()).await.is_err(), "nobody answers yet");
        begun.send_replace(true);
        assert_eq!(body.next().await.unwrap().unwrap(), " ");
        for part in ["{}\n", " "] {
            if part != " " {
                parts.send(Ok(Bytes::from_static(part.as_bytes()))).await.unwrap();
            }
            assert_eq!(body.next().await.unwrap().unwrap(), part);
        }
        parts.send(Ok(Bytes::from_static(b"{}\n{"))).await.unwrap();
        assert_eq!(body.next().await.unwrap().unwrap(), "{}\n{");
        assert!(timeout(BLANK_PAUSE * 5, body.next()).await.is_err(), "within a line nothing may be added");
        drop(parts);
        assert!(body.next().await.is_none());
    }
}
