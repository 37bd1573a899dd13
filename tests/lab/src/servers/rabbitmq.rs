//! A RabbitMQ node of our own, with a port mapper of its own: the one that Erlang would start by itself stays behind.

use std::path::{Path, PathBuf};

use anyhow::Context;

use super::{Keeper, Server, free_port, listens, write};

/// A user who may do everything; else there would be none.
const DEFINITIONS: &str = r#"{
  "vhosts": [{"name": "/"}],
  "users": [{"name": "guest", "password": "guest", "tags": ""}],
  "permissions": [{"user": "guest", "vhost": "/", "configure": ".*", "write": ".*", "read": ".*"}]
}"#;

/// Starts one; returns when it answers, some seconds later.
///
/// # Errors
/// When it cannot be started.
pub async fn start_rabbitmq() -> anyhow::Result<Server> {
    let mapper_port = free_port()?;
    let port = mapper_port.to_string();
    let mapper = Keeper::new(|_| Ok(vec!["epmd", "-port", &port, "-address", "127.0.0.1"]));
    let mapper = mapper.context("cannot start RabbitMQ's port mapper")?;
    mapper.start()?;
    let distribution = free_port()?;
    let mut server = Server::start("rabbitmq-server", listens, |port, dir| {
        let mut command = vec!["env".to_owned()];
        command.extend(environment(dir, port, mapper_port, distribution)?);
        command.push(program());
        Ok(command)
    })
    .await?;
    server._beside = Some(mapper);
    Ok(server)
}

/// What the node is told, as arguments of `env`.
fn environment(dir: &Path, port: u16, mapper: u16, distribution: u16) -> std::io::Result<Vec<String>> {
    let definitions = write(dir, "definitions.json", DEFINITIONS)?;
    let config = format!("listeners.tcp.default = 127.0.0.1:{port}\nload_definitions = {definitions}\n");
    let folder = |name: &str| dir.join(name).display().to_string();
    let variables = [
        // The cookie lies there.
        ("HOME", dir.display().to_string()),
        ("RABBITMQ_NODENAME", "verify@localhost".to_owned()),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
        ("ERL_EPMD_PORT", mapper.to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("ERL_ZFLAGS", "-start_epmd false".to_owned()),
        ("RABBITMQ_NODE_PORT", port.to_string()),
        ("RABBITMQ_DIST_PORT", distribution.to_string()),
        ("RABBITMQ_CONFIG_FILE", write(dir, "rabbitmq.conf", &config)?),
        ("RABBITMQ_CONFIG_FILES", folder("no-more-files")),
        ("RABBITMQ_ENABLED_PLUGINS_FILE", write(dir, "plugins", "[].\n")?),
        ("RABBITMQ_MNESIA_BASE", folder("data")),
        ("RABBITMQ_LOG_BASE", folder("log")),
        // Else its script stays in between, and would be killed in the place of the node.
        ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
        ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}".to_owned()),
    ];
    Ok(variables.into_iter().map(|(name, value)| format!("{name}={value}")).collect())
}

/// What Debian puts on the path insists on one of two users.
fn program() -> String {
    let path = PathBuf::from("/usr/lib/rabbitmq/bin/rabbitmq-server");
    if path.is_file() { path.display().to_string() } else { "rabbitmq-server".to_owned() }
}
