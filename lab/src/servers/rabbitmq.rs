//! A RabbitMQ node for tests, with a port mapper of its own, because the one that Erlang starts by itself would keep
//! running.

use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::Context;
use serde_json::{Value, json};

use super::{Keeper, Server, free_port, listens, write};

/// The file with the environment of the node's tools, in its folder.
const ENVIRONMENT: &str = "environment";

/// Options of a node.
#[derive(Clone, Copy, Debug, Default)]
pub struct RabbitOptions<'a> {
    /// Appended to its configuration file.
    pub config: &'a str,
    /// Virtual hosts in addition to `/`.
    pub vhosts: &'a [&'a str],
    /// Plugins by name.
    pub plugins: &'a [&'a str],
    /// Users in addition to `guest`, with their passwords. Each has all permissions in every virtual host.
    pub users: &'a [(&'a str, &'a str)],
}

/// Starts a node; returns when it answers, after some seconds.
///
/// # Errors
/// If it cannot be started.
pub async fn start_rabbitmq(options: &RabbitOptions<'_>) -> anyhow::Result<Server> {
    let mapper_port = free_port()?;
    let port = mapper_port.to_string();
    let mapper = Keeper::new(|_| Ok(vec!["epmd", "-port", &port, "-address", "127.0.0.1"]));
    let mapper = mapper.context("cannot start RabbitMQ's port mapper")?;
    mapper.start()?;
    let distribution_port = free_port()?;
    let definitions = definitions(options).to_string();
    let plugins = format!("[{}].\n", options.plugins.join(","));
    let mut server = Server::start("rabbitmq-server", listens, |port, dir| {
        let environment = environment(dir, mapper_port);
        write(dir, ENVIRONMENT, &environment.join("\n"))?;
        let definitions = write(dir, "definitions.json", &definitions)?;
        let config =
            format!("listeners.tcp.default = 127.0.0.1:{port}\nload_definitions = {definitions}\n{}\n", options.config);
        let folder = |name: &str| dir.join(name).display().to_string();
        let variables = [
            ("RABBITMQ_NODE_PORT", port.to_string()),
            ("RABBITMQ_DIST_PORT", distribution_port.to_string()),
            ("RABBITMQ_CONFIG_FILE", write(dir, "rabbitmq.conf", &config)?),
            ("RABBITMQ_CONFIG_FILES", folder("no-more-files")),
            ("RABBITMQ_ENABLED_PLUGINS_FILE", write(dir, "plugins", &plugins)?),
            ("RABBITMQ_MNESIA_BASE", folder("data")),
            ("RABBITMQ_LOG_BASE", folder("log")),
            // Otherwise its script would stay in between and be killed in place of the node.
            ("RUNNING_UNDER_SYSTEMD", "true".to_owned()),
            ("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 1:1 -kernel inet_dist_use_interface {127,0,0,1}".to_owned()),
        ];
        let variables = variables.into_iter().map(|(name, value)| format!("{name}={value}"));
        let command = ["env".to_owned()].into_iter().chain(environment).chain(variables);
        let script = if options.plugins.is_empty() { without_plugins(dir)? } else { program("rabbitmq-server") };
        Ok(command.chain([script.display().to_string()]).collect::<Vec<String>>())
    })
    .await?;
    server._beside = Some(mapper);
    Ok(server)
}

/// The `rabbitmqctl` of a node.
///
/// # Errors
/// If no node was started there, or no port is free.
pub fn rabbitmqctl(node: &Server) -> io::Result<Command> {
    let environment = std::fs::read_to_string(node.log().with_file_name(ENVIRONMENT))?;
    let own_port = free_port()?;
    let mut command = Command::new("env");
    command
        .args(environment.lines())
        .args(["MIN", "MAX"].map(|end| format!("RABBITMQ_CTL_DIST_PORT_{end}={own_port}")));
    command.arg(program("rabbitmqctl"));
    Ok(command)
}

/// The environment of the node and its tools, as arguments of `env`.
fn environment(dir: &Path, mapper_port: u16) -> Vec<String> {
    [
        // The cookie is there.
        ("HOME", dir.display().to_string()),
        // Each node has its own port mapper, so all can have the same name.
        ("RABBITMQ_NODENAME", "punctual@localhost".to_owned()),
        ("RABBITMQ_CONF_ENV_FILE", "/dev/null".to_owned()),
        ("ERL_EPMD_PORT", mapper_port.to_string()),
        ("ERL_EPMD_ADDRESS", "127.0.0.1".to_owned()),
        ("ERL_ZFLAGS", "-start_epmd false".to_owned()),
    ]
    .map(|(name, value)| format!("{name}={value}"))
    .to_vec()
}

/// The path of a program of RabbitMQ. Those on the PATH are Debian's wrappers, which only two users may run.
fn program(name: &str) -> PathBuf {
    let path = PathBuf::from("/usr/lib/rabbitmq/bin").join(name);
    if path.is_file() { path } else { name.into() }
}

/// The script that starts a broker, in a copy of the installation's folder without plugins. There a broker starts in
/// half of the CPU time, because Erlang searches all folders for each module. If the installation has another layout,
/// returns its own script.
fn without_plugins(dir: &Path) -> io::Result<PathBuf> {
    let script = program("rabbitmq-server");
    let installed = script.canonicalize().ok();
    let Some(installed) = installed.as_deref().and_then(Path::parent).and_then(Path::parent) else { return Ok(script) };
    let installed = |part: &str| installed.join(part);
    if !(installed("plugins").is_dir() && installed("escript").is_dir() && installed("sbin/rabbitmq-server").is_file())
    {
        return Ok(script);
    }
    let copy = dir.join("without-plugins");
    std::fs::create_dir_all(copy.join("plugins"))?;
    for part in std::fs::read_dir(installed("plugins"))? {
        let part = part?;
        let name = part.file_name();
        let name = name.to_string_lossy();
        // This is no plugin, though it is named like one: the broker begins with it.
        if !name.starts_with("rabbitmq_") || name.starts_with("rabbitmq_prelaunch") {
            symlink(part.path(), copy.join("plugins").join(&*name))?;
        }
    }
    symlink(installed("escript"), copy.join("escript"))?;
    symlink(installed("sbin"), copy.join("sbin"))?;
    Ok(copy.join("sbin").join("rabbitmq-server"))
}

fn definitions(options: &RabbitOptions) -> Value {
    let vhosts: Vec<&str> = ["/"].iter().chain(options.vhosts).copied().collect();
    let users: Vec<(&str, &str)> = [("guest", "guest")].iter().chain(options.users).copied().collect();
    let permissions = users.iter().flat_map(|(user, _)| {
        vhosts
            .iter()
            .map(move |vhost| json!({"user": user, "vhost": vhost, "configure": ".*", "write": ".*", "read": ".*"}))
    });
    json!({
        "vhosts": vhosts.iter().map(|name| json!({"name": name})).collect::<Vec<_>>(),
        "users": users.iter().map(|(name, password)| json!({"name": name, "password": password, "tags": "management"})).collect::<Vec<_>>(),
        "permissions": permissions.collect::<Vec<_>>(),
    })
}
