//! The files that `nsc` makes for a NATS server in operator mode: JWTs of an operator, two accounts and a user, and the
//! user's credentials file. <https://docs.nats.io/running-a-nats-service/configuration/securing_nats/auth_intro/jwt>

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use nkeys::KeyPair;
use serde_json::{Value, json};

/// An operator, its account with JetStream, and the system account.
pub(crate) struct Operator {
    account: KeyPair,
    /// Lines for the server's configuration.
    pub(crate) config: String,
}

impl Operator {
    /// Makes an operator with new keys.
    pub(crate) fn new() -> Operator {
        let (operator, account, system) = (KeyPair::new_operator(), KeyPair::new_account(), KeyPair::new_account());
        let limits = json!({"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true,
            "conn": -1, "leaf": -1, "mem_storage": -1, "disk_storage": -1, "streams": -1, "consumer": -1});
        let mut without = limits.clone();
        ["mem_storage", "disk_storage", "streams", "consumer"].iter().for_each(|&limit| without[limit] = 0.into());
        let of_account = |limits: &Value| json!({"type": "account", "version": 2, "limits": limits});
        let itself = jwt(&operator, &operator, json!({"type": "operator", "version": 2}));
        let config = format!(
            "operator: {itself}\nresolver: MEMORY\nsystem_account: {system_key}\n\
             resolver_preload: {{ {key}: {own}, {system_key}: {others} }}\n",
            system_key = system.public_key(),
            key = account.public_key(),
            own = jwt(&operator, &account, of_account(&limits)),
            others = jwt(&operator, &system, of_account(&without)),
        );
        Operator { account, config }
    }

    /// Credentials file of a new user of the account.
    pub(crate) fn credentials(&self) -> String {
        credentials(&self.account)
    }

    /// Credentials file of a user whose account the server does not know.
    pub(crate) fn foreign_credentials(&self) -> String {
        credentials(&KeyPair::new_account())
    }
}

fn credentials(account: &KeyPair) -> String {
    let user = KeyPair::new_user();
    let claims = json!({"type": "user", "version": 2, "subs": -1, "data": -1, "payload": -1, "pub": {}, "sub": {}});
    format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         ************************* IMPORTANT *************************\n\
         NKEY Seed printed below can be used to sign and prove identity.\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        jwt(account, &user, claims),
        user.seed().expect("a seed")
    )
}

fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: Value) -> String {
    let claims = json!({"jti": subject.public_key(), "iat": 1_700_000_000, "iss": issuer.public_key(), "name": "test",
        "sub": subject.public_key(), "nats": nats});
    let encode = |value: Value| URL_SAFE_NO_PAD.encode(value.to_string());
    let text = format!("{}.{}", encode(json!({"typ": "JWT", "alg": "ed25519-nkey"})), encode(claims));
    let signature = issuer.sign(text.as_bytes()).expect("a key that signs");
    format!("{text}.{}", URL_SAFE_NO_PAD.encode(signature))
}
