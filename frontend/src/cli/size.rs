//! Sizes of memory: `4GiB`, `512MB`, `60%`.

use std::{fmt, fs, path::Path, str::FromStr};

use carousel_cluster::router::RESERVE_BYTES;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::failure::Failure;

/// An amount of memory as a user writes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemorySize {
    /// So many bytes.
    Bytes(u64),
    /// A share of the machine's memory, in percent.
    Percent(u8),
}

impl MemorySize {
    /// Bytes on this machine; `None` when it is a share and the machine does not tell how much memory it has.
    pub fn bytes(self) -> Option<u64> {
        match self {
            MemorySize::Bytes(bytes) => Some(bytes),
            MemorySize::Percent(percent) => machine_memory().map(|all| all / 100 * u64::from(percent)),
        }
    }
}

/// Bytes that are to be free on the disk of a router's log.
///
/// # Errors
/// A setup failure for a share: it would be one of the machine's memory.
pub fn log_reserve(size: Option<MemorySize>) -> Result<u64, Failure> {
    match size {
        None => Ok(RESERVE_BYTES),
        Some(MemorySize::Bytes(bytes)) => Ok(bytes),
        Some(MemorySize::Percent(_)) => {
            Err(Failure::setup("--log-reserve is an amount such as 256MiB, not a share"))
        }
    }
}

impl FromStr for MemorySize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let wrong = || format!("'{text}' is not a size such as 4GiB, 512MB or 60%");
        let number_end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
        let (number, unit) = text.split_at(number_end);
        let number: f64 = number.parse().map_err(|_| wrong())?;
        let unit = unit.trim();
        if unit == "%" {
            return if number.fract() == 0.0 && (1.0..=100.0).contains(&number) {
                Ok(MemorySize::Percent(number as u8))
            } else {
                Err(format!("'{text}' is not between 1% and 100%"))
            };
        }
        let scale: u64 = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "kb" => 1000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            "k" | "kib" => 1 << 10,
            "m" | "mib" => 1 << 20,
            "g" | "gib" => 1 << 30,
            "t" | "tib" => 1 << 40,
            _ => return Err(wrong()),
        };
        let bytes = number * scale as f64;
        if bytes < 1.0 {
            Err(format!("'{text}' is no memory at all"))
        } else if bytes >= (1_u64 << 60) as f64 {
            Err(format!("'{text}' is more memory than any machine has"))
        } else {
            Ok(MemorySize::Bytes(bytes as u64))
        }
    }
}

impl fmt::Display for MemorySize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MemorySize::Percent(percent) => write!(f, "{percent}%"),
            MemorySize::Bytes(bytes) => write!(f, "{bytes}"),
        }
    }
}

impl Serialize for MemorySize {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MemorySize {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl serde::de::Visitor<'_> for Visitor {
            type Value = MemorySize;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a size such as \"4GiB\" or a number of bytes")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<MemorySize, E> {
                text.parse().map_err(E::custom)
            }

            fn visit_u64<E: serde::de::Error>(self, bytes: u64) -> Result<MemorySize, E> {
                self.visit_str(&bytes.to_string())
            }

            fn visit_i64<E: serde::de::Error>(self, bytes: i64) -> Result<MemorySize, E> {
                self.visit_str(&bytes.to_string())
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// Where the tree of control groups is, of which a container sees its own part.
const GROUPS: &str = "/sys/fs/cgroup";

/// The least limit of memory that a control group and those above it have, up to the root of their tree. One that the tree
/// does not show has none.
fn group_limit(root: &Path, group: &Path) -> Option<u64> {
    let limit = |group: &Path| -> Option<u64> {
        fs::read_to_string(root.join(group).join("memory.max")).ok()?.trim().parse().ok()
    };
    group.ancestors().filter_map(limit).min()
}

/// The path of this process's control group in the tree, from what the system says of the process.
fn own_group(told: &str) -> &Path {
    let group = told.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or_default();
    Path::new(group.trim_start_matches('/'))
}

/// Bytes of memory that this process may use: the machine's, or less when its control group or one above it has a limit.
pub fn machine_memory() -> Option<u64> {
    // SAFETY: sysconf reads a constant of the system and touches no memory of ours.
    let (pages, page_size) =
        unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    let physical = u64::try_from(pages).ok()?.checked_mul(u64::try_from(page_size).ok()?)?;
    let told = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_limit(Path::new(GROUPS), own_group(&told));
    Some(group.map_or(physical, |limit| limit.min(physical)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_written() {
        for (text, bytes) in [
            ("4GiB", 4 << 30),
            ("4 gib", 4 << 30),
            ("1.5MiB", 3 << 19),
            ("512MB", 512_000_000),
            ("1000", 1000),
            ("2k", 2048),
        ] {
            assert_eq!(text.parse(), Ok(MemorySize::Bytes(bytes)), "{text}");
        }
        assert_eq!("60%".parse(), Ok(MemorySize::Percent(60)));
    }

    #[test]
    fn anything_else_is_refused() {
        for text in [
            "",
            "GiB",
            "4 apples",
            "-1GiB",
            "0",
            "0GiB",
            "0%",
            "101%",
            "1.5%",
            "1e3",
            "9999999999TiB",
            "1.2.3M",
        ] {
            assert!(text.parse::<MemorySize>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_least_limit_on_the_way_to_a_control_group_counts() {
        let root = tempfile::tempdir().unwrap();
        let service = root.path().join("system.slice/carousel.service");
        fs::create_dir_all(&service).unwrap();
        let group = own_group("1:name=systemd:/elsewhere\n0::/system.slice/carousel.service\n");
        assert_eq!(group_limit(root.path(), group), None, "the root of a machine has no limit");
        fs::write(service.join("memory.max"), "max\n").unwrap();
        assert_eq!(group_limit(root.path(), group), None);
        fs::write(root.path().join("system.slice/memory.max"), "3000\n").unwrap();
        assert_eq!(group_limit(root.path(), group), Some(3000));
        fs::write(service.join("memory.max"), "2000\n").unwrap();
        assert_eq!(group_limit(root.path(), group), Some(2000));
        assert_eq!(group_limit(root.path(), own_group("0::/\n")), None, "others' limits are not its own");
        // A container's own is the root that it sees, whatever the path.
        fs::write(root.path().join("memory.max"), "1000\n").unwrap();
        for told in ["0::/docker/0123\n", "0::/\n", ""] {
            assert_eq!(group_limit(root.path(), own_group(told)), Some(1000), "{told}");
        }
    }

    #[test]
    fn a_share_is_that_of_the_machine() {
        let all = machine_memory().expect("the machine has memory");
        assert_eq!(MemorySize::Percent(50).bytes(), Some(all / 100 * 50));
    }
}
