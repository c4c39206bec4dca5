//! The baseline: three etcd processes on this machine, with their defaults, asked over gRPC.
//!
//! A call of one of etcd's methods is an HTTP/2 request with one length-prefixed protobuf message, which is little
//! enough to be written down here: the library that speaks HTTP/2 is in the binary anyway. (etcd's other interface, JSON
//! over HTTP, is slower.) Clients share connections to the leader, so that no write is forwarded.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use futures::future::BoxFuture;
use h2::client::SendRequest;
use tempfile::TempDir;
use tokio::net::TcpStream;

use super::load::Store;
use crate::{
    bench::processes::{free_addresses, processor_time},
    cli::Failure,
};

const MEMBERS: u32 = 3;
/// Connections that the clients share.
const CONNECTIONS: usize = 16;
/// How long a new cluster may take to have a leader.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long one waits before one asks again.
const AGAIN: Duration = Duration::from_millis(100);
/// Most bytes of answers on their way on a connection.
const WINDOW: u32 = 16 << 20;

struct Member {
    process: Child,
    address: String,
}

impl Drop for Member {
    fn drop(&mut self) {
        // What it holds is of no use to anybody any more.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A cluster of three; it ends when this is dropped.
pub struct Etcd {
    members: Vec<Member>,
    connections: Connections,
    _directory: TempDir,
}

/// Connections to the leader.
#[derive(Clone)]
pub struct Connections {
    all: Arc<[SendRequest<Bytes>]>,
    next: Arc<AtomicUsize>,
}

fn failed(reason: impl std::fmt::Display) -> Failure {
    Failure::job(format!("etcd: {reason}"))
}

impl Etcd {
    /// The program, if it is installed.
    pub fn find() -> Option<PathBuf> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).map(|folder| folder.join("etcd")).find(|program| program.is_file())
    }

    /// What the program calls itself.
    ///
    /// # Errors
    /// When it does not run.
    pub fn version(program: &Path) -> Result<String, Failure> {
        let output = Command::new(program).arg("--version").output().map_err(failed)?;
        let text = String::from_utf8_lossy(&output.stdout);
        let number = text.lines().next().and_then(|line| line.rsplit(' ').next());
        Ok(format!("etcd {}", number.unwrap_or_default()))
    }

    /// Starts the members and connects to their leader.
    ///
    /// # Errors
    /// What etcd says.
    pub async fn start(program: &Path) -> Result<Etcd, Failure> {
        let directory = tempfile::tempdir().map_err(failed)?;
        let addresses = free_addresses(2 * MEMBERS)?;
        let (clients, peers) = addresses.split_at(MEMBERS as usize);
        let everybody: Vec<String> =
            peers.iter().enumerate().map(|(number, peer)| format!("e{number}=http://{peer}")).collect();
        let mut members = Vec::new();
        for (number, (client, peer)) in clients.iter().zip(peers).enumerate() {
            let log = File::create(directory.path().join(format!("e{number}.log"))).map_err(failed)?;
            let process = Command::new(program)
                .arg(format!("--name=e{number}"))
                .arg(format!("--data-dir={}", directory.path().join(format!("e{number}")).display()))
                .arg(format!("--listen-client-urls=http://{client}"))
                .arg(format!("--advertise-client-urls=http://{client}"))
                .arg(format!("--listen-peer-urls=http://{peer}"))
                .arg(format!("--initial-advertise-peer-urls=http://{peer}"))
                .arg(format!("--initial-cluster={}", everybody.join(",")))
                .args(["--logger=zap", "--log-level=error"])
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(log)
                .spawn()
                .map_err(failed)?;
            members.push(Member { process, address: client.clone() });
        }
        let leader = async {
            loop {
                for member in &members {
                    if leads(&member.address).await.unwrap_or(false) {
                        return member.address.clone();
                    }
                }
                tokio::time::sleep(AGAIN).await;
            }
        };
        let leader = tokio::time::timeout(PATIENCE, leader).await.map_err(|_| failed("no member leads"))?;
        let mut all = Vec::new();
        for _ in 0..CONNECTIONS {
            all.push(connect(&leader).await?);
        }
        let connections = Connections { all: all.into(), next: Arc::default() };
        Ok(Etcd { members, connections, _directory: directory })
    }

    /// Where writes go.
    pub fn connections(&self) -> Connections {
        self.connections.clone()
    }

    /// Time of a processor that the members have taken.
    pub fn processor_time(&self) -> Duration {
        self.members.iter().map(|member| processor_time(member.process.id())).sum()
    }
}

async fn connect(address: &str) -> Result<SendRequest<Bytes>, Failure> {
    let stream = TcpStream::connect(address).await.map_err(failed)?;
    stream.set_nodelay(true).map_err(failed)?;
    let mut builder = h2::client::Builder::new();
    builder.initial_connection_window_size(WINDOW).initial_window_size(WINDOW);
    let (requests, connection) = builder.handshake(stream).await.map_err(failed)?;
    // Those who ask hear of its end.
    tokio::spawn(connection);
    Ok(requests)
}

/// Calls a method; gives the protobuf message that it answers.
async fn call(requests: SendRequest<Bytes>, method: &str, message: &[u8]) -> Result<Bytes, Failure> {
    let request = http::Request::builder()
        .method(http::Method::POST)
        .uri(format!("http://etcd{method}"))
        .header("te", "trailers")
        .header("content-type", "application/grpc")
        .body(())
        .map_err(failed)?;
    let mut framed = BytesMut::with_capacity(5 + message.len());
    framed.put_u8(0);
    framed.put_u32(message.len() as u32);
    framed.put_slice(message);
    let mut requests = requests.ready().await.map_err(failed)?;
    let (answer, mut sending) = requests.send_request(request, false).map_err(failed)?;
    sending.send_data(framed.freeze(), true).map_err(failed)?;
    let answer = answer.await.map_err(failed)?;
    let status = |headers: &http::HeaderMap| headers.get("grpc-status").cloned();
    let early = status(answer.headers());
    let mut body = answer.into_body();
    let mut content = BytesMut::new();
    while let Some(data) = body.data().await {
        let data = data.map_err(failed)?;
        body.flow_control().release_capacity(data.len()).map_err(failed)?;
        content.extend_from_slice(&data);
    }
    let trailers = body.trailers().await.map_err(failed)?;
    match early.or_else(|| status(&trailers.unwrap_or_default())) {
        Some(status) if status == "0" && content.len() >= 5 => Ok(content.freeze().slice(5..)),
        status => Err(failed(format!("{method} answers {status:?}"))),
    }
}

/// Whether the member at this address leads.
async fn leads(address: &str) -> Result<bool, Failure> {
    let requests = connect(address).await?;
    let status = call(requests, "/etcdserverpb.Maintenance/Status", &[]).await?;
    // header { member_id = 2 } = 1, leader = 4.
    let header = field(&status, 1).and_then(|field| match field {
        Field::Bytes(header) => Some(header),
        Field::Number(_) => None,
    });
    let number = |message: &[u8], wanted| match field(message, wanted) {
        Some(Field::Number(number)) => Some(number),
        _ => None,
    };
    let leader = number(&status, 4).filter(|leader| *leader != 0);
    Ok(leader.is_some() && leader == header.and_then(|header| number(header, 2)))
}

/// A field of a protobuf message.
enum Field<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

/// The first field of a protobuf message with this number. Fields of fixed width are not expected.
fn field(mut message: &[u8], wanted: u64) -> Option<Field<'_>> {
    while !message.is_empty() {
        let key = varint(&mut message)?;
        let value = varint(&mut message)?;
        let field = match key & 7 {
            0 => Field::Number(value),
            2 => {
                let (content, rest) = message.split_at_checked(usize::try_from(value).ok()?)?;
                message = rest;
                Field::Bytes(content)
            }
            _ => return None,
        };
        if key >> 3 == wanted {
            return Some(field);
        }
    }
    None
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

impl Store for Connections {
    type Pending = BoxFuture<'static, Result<(), Failure>>;

    async fn submit(&self, key: u64, value: u64) -> Result<Self::Pending, Failure> {
        // PutRequest { key = 1, value = 2 }, eight bytes each.
        let mut message = [0; 20];
        message[..2].copy_from_slice(&[0x0a, 8]);
        message[2..10].copy_from_slice(&key.to_be_bytes());
        message[10..12].copy_from_slice(&[0x12, 8]);
        message[12..].copy_from_slice(&value.to_be_bytes());
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let requests = self.all[next % self.all.len()].clone();
        Ok(Box::pin(async move { call(requests, "/etcdserverpb.KV/Put", &message).await.map(drop) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_messages_are_found() {
        // 1: { 2: 300 }, 4: 5
        let message = [0x0a, 3, 0x10, 0xac, 0x02, 0x20, 5];
        let Some(Field::Bytes(header)) = field(&message, 1) else { panic!("field 1 has bytes") };
        assert!(matches!(field(header, 2), Some(Field::Number(300))));
        assert!(matches!(field(&message, 4), Some(Field::Number(5))));
        assert!(field(&message, 7).is_none() && field(&message[..3], 1).is_none());
    }
}
