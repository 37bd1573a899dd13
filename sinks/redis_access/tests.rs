use std::sync::atomic::{AtomicU32, Ordering};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;
use tokio::time::{sleep, timeout};

use super::*;

const SOCKET: RedisSocket = RedisSocket {
    probe_after: Duration::from_secs(1),
    probe_every: Duration::from_secs(1),
    acknowledged_in: Duration::from_secs(1),
    discard_unsent: true,
};

/// A server that answers each command after a delay: a Sentinel, or a Redis in a given role.
struct Fake {
    port: u16,
    connections: Arc<AtomicU32>,
}

impl Fake {
    async fn start(delay: Duration, to_special: String) -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let fake = Fake { port, connections: Arc::default() };
        let connections = Arc::clone(&fake.connections);
        tokio::spawn(async move {
            while let Ok((mut socket, _)) = listener.accept().await {
                connections.fetch_add(1, Ordering::Relaxed);
                let to_special = to_special.clone();
                tokio::spawn(async move {
                    let mut bytes = vec![0; 4096];
                    while let Ok(count @ 1..) = socket.read(&mut bytes).await {
                        let said = String::from_utf8_lossy(&bytes[..count]).into_owned();
                        tokio::time::sleep(delay).await;
                        let commands = said.lines().filter(|line| line.starts_with('*')).count();
                        let special = ["ROLE", "SENTINEL"].iter().any(|name| said.contains(name));
                        let answer = if special { to_special.clone() } else { "+OK\r\n".repeat(commands) };
                        socket.write_all(answer.as_bytes()).await.expect("a listener");
                    }
                });
            }
        });
        fake
    }

    async fn server(delay: Duration, role: &str) -> Fake {
        Fake::start(delay, format!("*1\r\n${}\r\n{role}\r\n", role.len())).await
    }

    async fn sentinel(delay: Duration, of: &Fake) -> Fake {
        let port = of.port.to_string();
        Fake::start(delay, format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())).await
    }

    fn connections(&self) -> u32 {
        self.connections.load(Ordering::Relaxed)
    }
}

async fn connect(access: &RedisAccess, limit: Duration) -> Result<Commands, Away> {
    let config = AsyncConnectionConfig::new().set_response_timeout(None).set_connection_timeout(None);
    access.connect(SOCKET, config, limit).await
}

/// Nothing runs in between, so the driver of the connection has not been polled yet.
#[tokio::test]
async fn an_ended_connection_is_not_alive_even_before_its_driver_runs() {
    let server = Fake::server(Duration::ZERO, "master").await;
    let access = parse(&format!("redis://127.0.0.1:{}", server.port)).expect("a good URL");
    let commands = connect(&access, Duration::from_secs(10)).await.expect("a server");
    assert!(commands.alive());
    commands.end();
    assert!(!commands.alive());
}

/// Request, login and role take 1.2 s, more than a third of the time.
#[tokio::test]
async fn silent_sentinels_take_no_time_from_a_slow_one_in_any_order() {
    let slow = Duration::from_millis(400);
    let master = Fake::server(slow, "master").await;
    let well = Fake::sentinel(slow, &master).await.port;
    let silent = [TcpListener::bind("127.0.0.1:0").await, TcpListener::bind("127.0.0.1:0").await];
    let silent = silent.map(|listener| listener.expect("a port"));
    let [one, other] = silent.each_ref().map(|listener| listener.local_addr().expect("an address").port());
    for ports in [[well, one, other], [one, other, well]] {
        let hosts = ports.map(|port| format!("127.0.0.1:{port}")).join(",");
        let access = parse(&format!("redis+sentinel://{hosts}/main")).expect("a good URL");
        // Repeated in case the whole machine paused. With more time a third of it would be enough.
        let mut tries = 0;
        while let Err(away) = connect(&access, Duration::from_secs(3)).await {
            tries += 1;
            assert!(tries < 5, "{away:?}");
        }
    }
}

#[tokio::test]
async fn every_unreachable_sentinel_is_reported_within_the_time_limit() {
    let silent = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = silent.local_addr().expect("an address").port();
    let access = parse(&format!("redis+sentinel://127.0.0.1:1,127.0.0.1:{port}/main")).expect("a good URL");
    let away = connect(&access, Duration::from_secs(1)).await.err().expect("nobody is there");
    assert_eq!(away.cause, Cause::Unreachable);
    let detail = away.detail;
    assert!(detail.starts_with("by the sentinel `127.0.0.1:1`: Connection refused"), "{detail}");
    assert!(detail.ends_with(&format!("; by the sentinel `127.0.0.1:{port}`: no answer within 1s")), "{detail}");
}

#[tokio::test]
async fn a_subscription_uses_the_server_of_the_commands_despite_a_stale_sentinel() {
    let (replica, master) = (Fake::server(Duration::ZERO, "slave").await, Fake::server(Duration::ZERO, "master").await);
    let stale = Fake::sentinel(Duration::ZERO, &replica).await;
    let fresh = Fake::sentinel(Duration::ZERO, &master).await;
    let url = format!("redis+sentinel://127.0.0.1:{},127.0.0.1:{}/main", stale.port, fresh.port);
    let access = parse(&url).expect("a good URL");
    let limit = Duration::from_secs(10);
    let commands = connect(&access, limit).await.expect("a master");
    access.subscribe(&commands, SOCKET, limit).await.expect("a subscription");
    // A connection is there before the server has accepted it.
    let accepted = timeout(limit, async {
        while master.connections() < 2 {
            sleep(Duration::from_millis(5)).await;
        }
    });
    accepted.await.expect("both connections are to the master");
    assert_eq!((replica.connections(), master.connections()), (1, 2));
}

fn parse(url: &str) -> Result<RedisAccess, String> {
    RedisAccess::parse(url, &Tls::default()).map_err(|error| error.to_string())
}

#[test]
fn a_redis_url_names_a_server_or_its_sentinels() {
    let straight = parse("rediss://me:hunter2@h/3").expect("a good URL");
    assert_eq!((straight.master.as_deref(), straight.database), (None, 3));
    assert!(straight.connector.is_some());
    let sentinels = parse("redis+sentinel://me:hunter2@a,b:7/main/2").expect("a good URL");
    assert_eq!((sentinels.master.as_deref(), sentinels.database), (Some("main"), 2));
    assert_eq!(sentinels.target.hosts, [("a".to_owned(), 26379), ("b".to_owned(), 7)]);
    assert_eq!(sentinels.address(), "redis+sentinel://a:26379,b:7/main/2");
    assert!(!format!("{sentinels:?}{straight:?}").contains("hunter2"));
    let password = Some(SecretString::from("hunter3"));
    assert!(straight.with_sentinel_password(password.clone()).is_err());
    let sentinels = sentinels.with_sentinel_password(password).expect("Sentinels");
    assert!(!format!("{sentinels:?}").contains("hunter3"));
}

#[test]
fn an_unusable_redis_url_is_refused_without_quoting_its_secret() {
    for (url, detail) in [
        ("redis://:hunter2@a,b", "one host"),
        ("redis://hunter2@a", "a password behind its user"),
        ("rediss+sentinel://hunter2@a,b/main", "a password behind its user"),
        ("redis+sentinel://:hunter2@a,b", "names its master"),
        ("redis+sentinel://:hunter2@a/", "names its master"),
        ("redis+sentinel://:hunter2@a/m/x", "`x` is no number"),
        ("redis://:hunter2@a/-1", "`-1` is no number"),
        ("redis://:hunter2@a?db=1", "no parameters"),
        ("hunter2", "a Redis is named by a URL"),
    ] {
        let refused = parse(url).expect_err(url);
        assert!(refused.contains(detail) && !refused.contains("hunter2"), "{url}: {refused}");
    }
}
