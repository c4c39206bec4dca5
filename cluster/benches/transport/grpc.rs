//! gRPC in the transport's place: what a process sends to another goes from its route into a bidirectional stream, and what
//! comes of the stream into its mailbox. There is no code generation; messages are bytes, the same as the transport's.

use std::convert::Infallible;

use bytes::{Buf, BufMut, Bytes};
use carousel_cluster::{
    message::ProcessId,
    network::{Envelope, Lane, Network},
    wire::{self, Wire},
};
use futures::{Stream, StreamExt};
use tokio::net::TcpListener;
use tonic::{
    Request, Response, Status, Streaming,
    codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder},
    transport::{Endpoint, Server, server::TcpIncoming},
};

use super::{Pair, Process, loopback};

/// As the transport's.
const WINDOW: u32 = 16 << 20;
/// Longest gRPC message.
const LONGEST: usize = 64 << 20;
/// The longest frame of HTTP/2. Of 16 KiB (the default) to 16 MiB, gRPC is fastest with this.
const FRAME: u32 = 1 << 20;

/// Connects two processes by a bidirectional stream. Up to `batch` messages that are ready become one gRPC message.
pub(super) async fn connect(pair: &Pair, batch: usize) {
    let far = Party::of(&pair.far);
    let talk = tower::service_fn(move |request: Request<Streaming<Bytes>>| {
        let outgoing = far.outgoing(batch).map(Ok);
        tokio::spawn(far.clone().take_in(request.into_inner()));
        std::future::ready(Ok::<_, Status>(Response::new(outgoing)))
    });
    let serve = tower::service_fn(move |request: http::Request<tonic::body::Body>| {
        let mut server = tonic::server::Grpc::new(Whole).max_decoding_message_size(LONGEST);
        let talk = talk.clone();
        async move { Ok::<_, Infallible>(server.streaming(talk, request).await) }
    });
    let listener = TcpListener::bind(loopback()).await.expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("it listens"));
    let server = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .serve_with_incoming(serve, TcpIncoming::from(listener).with_nodelay(Some(true)));
    tokio::spawn(server);
    let channel = Endpoint::from_shared(address)
        .expect("an address")
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(FRAME)
        .connect()
        .await
        .expect("somebody listens");
    let mut client = tonic::client::Grpc::new(channel).max_decoding_message_size(LONGEST);
    client.ready().await.expect("it is connected");
    let path = "/carousel.Transport/Talk".parse().expect("a path");
    let near = Party::of(&pair.near);
    let answer =
        client.streaming(Request::new(near.outgoing(batch)), path, Whole).await.expect("it is accepted");
    tokio::spawn(near.take_in(answer.into_inner()));
}

/// A process, as gRPC sees it.
#[derive(Clone)]
struct Party {
    network: Network,
    id: ProcessId,
    other: ProcessId,
}

impl Party {
    fn of(process: &Process) -> Party {
        Party { network: process.network.clone(), id: process.endpoint.id(), other: process.other }
    }

    /// What it sends, as gRPC messages.
    fn outgoing(&self, batch: usize) -> impl Stream<Item = Vec<Bytes>> + Send + use<> {
        let mut route = self.network.open_route(self.id, self.other);
        let mut mailbox = route.take(Lane::Data).expect("it is taken once");
        let mut messages = Vec::new();
        futures::stream::poll_fn(move |context| {
            // As long as there is the stream, there is the route.
            let _ = &route;
            let received = mailbox.poll_recv_many(context, &mut messages, batch);
            received.map(|count| (count > 0).then(|| pack(&mut messages)))
        })
    }

    /// Hands on what arrives for it.
    async fn take_in(self, mut stream: Streaming<Bytes>) {
        while let Ok(Some(bytes)) = stream.message().await {
            let mut rest = &bytes[..];
            while !rest.is_empty() {
                let (mut wire, behind) = postcard::take_from_bytes(rest).expect("what was packed");
                rest = behind;
                if let Wire::Rows { chunk, .. } = &mut wire {
                    chunk.rows = bytes.slice_ref(std::mem::take(&mut rest));
                }
                if self.network.deliver(self.other, self.id, wire).await.is_err() {
                    return;
                }
            }
        }
    }
}

/// Makes messages one. Rows, which are sent alone, are a part of their own behind their message: as in the transport nobody
/// copies them into it.
fn pack(messages: &mut Vec<Envelope>) -> Vec<Bytes> {
    let mut rows = None;
    let append = |bytes, (_, mut wire): Envelope| {
        if let Wire::Rows { chunk, .. } = &mut wire {
            rows = Some(std::mem::take(&mut chunk.rows));
        }
        append(&wire, bytes)
    };
    let bytes = messages.drain(..).fold(Vec::with_capacity(1 << 10), append);
    [bytes.into()].into_iter().chain(rows).collect()
}

/// Appends a message in postcard's form, as the transport does.
pub(super) fn append(wire: &Wire, bytes: Vec<u8>) -> Vec<u8> {
    wire::append(wire, bytes).expect("it can be serialised")
}

/// Messages are bytes.
#[derive(Clone, Copy)]
struct Whole;

impl Codec for Whole {
    type Encode = Vec<Bytes>;
    type Decode = Bytes;
    type Encoder = Whole;
    type Decoder = Whole;

    fn encoder(&mut self) -> Whole {
        Whole
    }

    fn decoder(&mut self) -> Whole {
        Whole
    }
}

impl Encoder for Whole {
    type Item = Vec<Bytes>;
    type Error = Status;

    fn encode(&mut self, parts: Vec<Bytes>, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(parts.iter().map(Bytes::len).sum());
        parts.into_iter().for_each(|part| to.put(part));
        Ok(())
    }
}

impl Decoder for Whole {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}
