//! Addresses for clusters that are laid out on one host, in tests and benchmarks.

use std::{
    io,
    net::{Ipv4Addr, TcpListener},
    sync::atomic::{AtomicU16, Ordering},
};

/// Below the ports that operating systems give to connections: nobody takes one before its process listens.
const PORTS: std::ops::Range<u16> = 10_000..32_000;

/// How many ports this operating system process has looked at.
static LOOKED_AT: AtomicU16 = AtomicU16::new(0);

/// Loopback addresses at which nobody listens at the moment, and which this process has not given away before.
///
/// # Errors
/// When there are not so many.
pub fn free_addresses(count: usize) -> io::Result<Vec<String>> {
    // Other processes that do the same begin elsewhere.
    let first = std::process::id().wrapping_mul(997) % u32::from(PORTS.end - PORTS.start);
    let mut free = Vec::with_capacity(count);
    while free.len() < count {
        let looked_at = LOOKED_AT.fetch_add(1, Ordering::Relaxed);
        if looked_at >= PORTS.end - PORTS.start {
            return Err(io::Error::new(io::ErrorKind::AddrNotAvailable, "no port is free"));
        }
        let port = PORTS.start + ((first + u32::from(looked_at)) % u32::from(PORTS.end - PORTS.start)) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            free.push(format!("{}:{port}", Ipv4Addr::LOCALHOST));
        }
    }
    Ok(free)
}
