//! The sockets under the connections: the operating system's, and in this crate's tests also those of a simulated host
//! when that is where the transport runs.

#[cfg(not(test))]
pub(super) use tokio::net::{TcpListener, TcpStream};

#[cfg(test)]
pub(super) use either::{TcpListener, TcpStream};

#[cfg(test)]
mod either {
    use std::{
        io,
        net::SocketAddr,
        pin::Pin,
        task::{Context, Poll},
    };

    use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

    type Reader = Box<dyn AsyncRead + Send + Unpin>;
    type Writer = Box<dyn AsyncWrite + Send + Unpin>;

    pub(in crate::transport) enum TcpListener {
        System(tokio::net::TcpListener),
        Simulated(turmoil::net::TcpListener),
    }

    impl TcpListener {
        pub(in crate::transport) async fn bind(address: SocketAddr) -> io::Result<TcpListener> {
            Ok(match turmoil::in_simulation() {
                false => TcpListener::System(tokio::net::TcpListener::bind(address).await?),
                true => TcpListener::Simulated(turmoil::net::TcpListener::bind(address).await?),
            })
        }

        pub(in crate::transport) fn local_addr(&self) -> io::Result<SocketAddr> {
            match self {
                TcpListener::System(listener) => listener.local_addr(),
                TcpListener::Simulated(listener) => listener.local_addr(),
            }
        }

        pub(in crate::transport) async fn accept(&self) -> io::Result<(TcpStream, SocketAddr)> {
            Ok(match self {
                TcpListener::System(listener) => {
                    let (stream, address) = listener.accept().await?;
                    (TcpStream::System(stream), address)
                }
                TcpListener::Simulated(listener) => {
                    let (stream, address) = listener.accept().await?;
                    (TcpStream::Simulated(stream), address)
                }
            })
        }
    }

    pub(in crate::transport) enum TcpStream {
        System(tokio::net::TcpStream),
        Simulated(turmoil::net::TcpStream),
    }

    impl TcpStream {
        pub(in crate::transport) async fn connect(address: &str) -> io::Result<TcpStream> {
            Ok(match turmoil::in_simulation() {
                false => TcpStream::System(tokio::net::TcpStream::connect(address).await?),
                true => TcpStream::Simulated(turmoil::net::TcpStream::connect(address).await?),
            })
        }

        pub(in crate::transport) fn set_nodelay(&self, nodelay: bool) -> io::Result<()> {
            match self {
                TcpStream::System(stream) => stream.set_nodelay(nodelay),
                TcpStream::Simulated(stream) => stream.set_nodelay(nodelay),
            }
        }

        pub(in crate::transport) fn into_split(self) -> (Reader, Writer) {
            match self {
                TcpStream::System(stream) => {
                    let (reader, writer) = stream.into_split();
                    (Box::new(reader), Box::new(writer))
                }
                TcpStream::Simulated(stream) => {
                    let (reader, writer) = stream.into_split();
                    (Box::new(reader), Box::new(writer))
                }
            }
        }
    }

    impl AsyncRead for TcpStream {
        fn poll_read(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            buffer: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            match self.get_mut() {
                TcpStream::System(stream) => Pin::new(stream).poll_read(context, buffer),
                TcpStream::Simulated(stream) => Pin::new(stream).poll_read(context, buffer),
            }
        }
    }

    impl AsyncWrite for TcpStream {
        fn poll_write(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[u8],
        ) -> Poll<io::Result<usize>> {
            match self.get_mut() {
                TcpStream::System(stream) => Pin::new(stream).poll_write(context, bytes),
                TcpStream::Simulated(stream) => Pin::new(stream).poll_write(context, bytes),
            }
        }

        // TLS gives its last records, an alert among them, all at once or not at all.
        fn poll_write_vectored(
            self: Pin<&mut Self>,
            context: &mut Context<'_>,
            bytes: &[io::IoSlice<'_>],
        ) -> Poll<io::Result<usize>> {
            match self.get_mut() {
                TcpStream::System(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
                TcpStream::Simulated(stream) => Pin::new(stream).poll_write_vectored(context, bytes),
            }
        }

        fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                TcpStream::System(stream) => Pin::new(stream).poll_flush(context),
                TcpStream::Simulated(stream) => Pin::new(stream).poll_flush(context),
            }
        }

        fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
            match self.get_mut() {
                TcpStream::System(stream) => Pin::new(stream).poll_shutdown(context),
                TcpStream::Simulated(stream) => Pin::new(stream).poll_shutdown(context),
            }
        }
    }
}
