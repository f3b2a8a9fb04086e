//! Connections that are closed when they are silent for too long.

use std::net::SocketAddr;
use std::pin::Pin;
use std::time::Duration;

use axum::serve::Listener;
use tokio::net::{TcpListener, TcpStream};
use tokio_io_timeout::TimeoutStream;

/// Accepts connections of which every read and write ends within `silence`.
///
/// The server reads also while it computes an answer, to learn of a client that has gone: `silence`
/// has to be longer than an answer takes.
pub struct Connections {
    pub listener: TcpListener,
    pub silence: Duration,
}

impl Listener for Connections {
    type Io = Pin<Box<TimeoutStream<TcpStream>>>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let (stream, address) = Listener::accept(&mut self.listener).await;
        // Answers are written whole, so there is nothing to wait for and send along. A connection
        // that refuses the option works without it.
        let _ = stream.set_nodelay(true);
        let mut stream = TimeoutStream::new(stream);
        stream.set_read_timeout(Some(self.silence));
        stream.set_write_timeout(Some(self.silence));
        (Box::pin(stream), address)
    }

    fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}
