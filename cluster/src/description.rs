//! What a cluster of separate processes consists of: the same for all of them.

use std::{collections::BTreeMap, net::SocketAddr};

use serde::{Deserialize, Serialize};

use crate::{
    config::Config,
    embedded::{Durability, StartError},
    message::ProcessId,
    routers::Routers,
};

/// A cluster description. The processes of a kind are numbered from 1 in the order of their addresses (host:port).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Description {
    /// The cluster's name: processes of clusters with other names are refused.
    pub name: String,
    /// How many storage processes hold each row.
    pub replication_factor: u32,
    /// Whether acknowledged means on disk.
    pub durability: Durability,
    /// With TLS, whether a certificate that names no process is good for any router or storage process.
    pub unnamed_certificates: bool,
    /// Addresses of the first routers.
    pub routers: Vec<String>,
    /// Addresses of the storage processes.
    pub storage: Vec<String>,
    /// The routers that the cluster has now, as a running process tells it; empty when they are the first ones.
    pub current: Routers,
}

/// Checks that an address is one at which others could reach somebody.
///
/// # Errors
/// What is wrong with it.
pub fn check_address(address: &str) -> Result<(), &'static str> {
    let port = address.rsplit_once(':').map(|(host, port)| (host.is_empty(), port.parse::<u16>()));
    if !matches!(port, Some((false, Ok(1..)))) || address.chars().any(char::is_whitespace) {
        return Err("is not of the form HOST:PORT");
    }
    match address.parse::<SocketAddr>() {
        Ok(address) if address.ip().is_unspecified() => {
            Err("is none at which others can reach it: say by which of its machine's addresses they can")
        }
        _ => Ok(()),
    }
}

impl Description {
    /// Checks that the parts fit together.
    ///
    /// # Errors
    /// One line that names the part and what is wrong with it.
    pub fn check(&self) -> Result<(), StartError> {
        let wrong = |text: String| Err(StartError::Options(text));
        if self.name.is_empty() || self.name.len() > 64 || self.name.contains(char::is_control) {
            return wrong("the cluster's name must have between 1 and 64 characters".into());
        }
        for (kind, addresses) in [("routers", &self.routers), ("storage", &self.storage)] {
            if addresses.is_empty() {
                return wrong(format!("the cluster's description has no {kind}"));
            }
        }
        let mut known = BTreeMap::new();
        for (process, address) in self.members() {
            if let Err(reason) = check_address(&address) {
                return wrong(format!("the address '{address}' of {process} {reason}"));
            }
            if let Some(other) = known.insert(address.clone(), process) {
                return wrong(format!("{other} and {process} have the same address {address}"));
            }
        }
        self.config().map(drop)
    }

    /// The first config of the ring.
    ///
    /// # Errors
    /// When the replication factor and the storage processes do not fit together.
    pub fn config(&self) -> Result<Config, StartError> {
        Config::evenly(self.storage.len() as u32, self.replication_factor)
            .map_err(|error| StartError::Options(error.to_string()))
    }

    /// The first routers and the storage processes with their addresses.
    pub fn members(&self) -> BTreeMap<ProcessId, String> {
        let routers = (1..).map(ProcessId::router).zip(&self.routers);
        let storage = (1..).map(ProcessId::storage).zip(&self.storage);
        routers.chain(storage).map(|(process, address)| (process, address.clone())).collect()
    }

    /// Who the routers are, as far as the description tells.
    pub fn known_routers(&self) -> Routers {
        match self.current.is_empty() {
            true => Routers::first(self.routers.len() as u32),
            false => self.current.clone(),
        }
    }

    /// As a TOML file, without the part that changes.
    pub fn to_toml(&self) -> String {
        let list = |addresses: &[String]| {
            let lines: Vec<String> = addresses.iter().map(|address| format!("  {address:?},\n")).collect();
            format!("[\n{}]", lines.concat())
        };
        let durability = match self.durability {
            Durability::Disk => "disk",
            Durability::Memory => "memory",
        };
        format!(
            "name = {:?}\nreplication-factor = {}\ndurability = \"{durability}\"\nunnamed-certificates = {}\nrouters = \
             {}\nstorage = {}\n",
            self.name,
            self.replication_factor,
            self.unnamed_certificates,
            list(&self.routers),
            list(&self.storage),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn good() -> Description {
        let addresses = |ports: std::ops::Range<u32>| ports.map(|port| format!("h:{port}")).collect();
        Description {
            name: "test".into(),
            replication_factor: 2,
            durability: Durability::Disk,
            routers: addresses(1..4),
            storage: addresses(11..15),
            ..Description::default()
        }
    }

    #[test]
    fn what_does_not_fit_together_is_refused() {
        good().check().expect("it fits");
        type Spoil = fn(&mut Description);
        let cases: [(&str, Spoil); 7] = [
            ("name", |d| d.name.clear()),
            ("routers", |d| d.routers.clear()),
            ("storage", |d| d.storage.clear()),
            ("replication", |d| d.replication_factor = 5),
            ("replication", |d| d.replication_factor = 0),
            ("h:1", |d| d.storage[0] = "h:1".into()),
            ("HOST:PORT", |d| d.storage[3] = "h".into()),
        ];
        for (part, spoil) in cases {
            let mut bad = good();
            spoil(&mut bad);
            let error = bad.check().expect_err(part).to_string();
            assert!(error.contains(part), "{part}: {error}");
        }
    }

    #[test]
    fn processes_are_numbered_in_order() {
        let members = good().members();
        assert_eq!(members.len(), 7);
        assert_eq!(members[&ProcessId::storage(2)], "h:12");
        assert!(good().to_toml().contains("routers = [\n  \"h:1\",\n"));
    }
}
