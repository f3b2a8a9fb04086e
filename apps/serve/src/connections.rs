//! Connections: their number and their time limits.

use std::io::{self, ErrorKind, IoSlice};
use std::pin::{Pin, pin};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Sleep, sleep};

use crate::places::Places;
use crate::workers::LARGE;

/// The most connections in excess that get a refusal at a time, and their time limit.
const REFUSED: (usize, Duration) = (64, Duration::from_secs(1));

/// The terms on which connections are served.
pub struct Terms {
    places: Places,
    router: TowerToHyperService<Router>,
    http: http1::Builder,
    transfer: Duration,
}

impl Terms {
    /// Terms for one connection per place. The head of each request must arrive within `idle`,
    /// counted from the last answer, and an answer must be read within `transfer`.
    pub fn new(places: Places, router: Router, idle: Duration, transfer: Duration) -> Self {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new())
            .header_read_timeout(idle)
            // The buffer holds read-ahead bytes and a head.
            .max_buf_size(LARGE);
        Self { places, router: TowerToHyperService::new(router), http, transfer }
    }

    /// The terms of connections in excess, which `router` refuses.
    pub fn in_excess(router: Router) -> Self {
        let (count, time) = REFUSED;
        let mut terms = Self::new(Places::new(count), router, time, time);
        terms.http.keep_alive(false);
        terms
    }
}

/// Accepts connections until `stop`, each on the first terms with a free place, and returns the
/// connections still open. A connection without a place is closed.
pub async fn accept(
    mut listener: TcpListener,
    terms: [Terms; 2],
    stop: impl Future<Output = ()>,
) -> GracefulShutdown {
    let open = GracefulShutdown::new();
    let mut stop = pin!(stop);
    loop {
        let (stream, _) = tokio::select! {
            accepted = Listener::accept(&mut listener) => accepted,
            () = &mut stop => return open,
        };
        let mut free = (terms.iter()).filter_map(|terms| Some((terms, terms.places.take(1)?)));
        let Some((terms, place)) = free.next() else {
            continue;
        };
        // Answers are written whole, so delaying a packet gains nothing. A connection that refuses
        // the option works without it.
        let _ = stream.set_nodelay(true);
        let io = TokioIo::new(Impatient { stream, time: terms.transfer, late: None });
        let connection = terms.http.serve_connection(io, terms.router.clone());
        let connection = open.watch(connection);
        tokio::spawn(async move {
            // A client that hangs up or is late is not an error of the server.
            let _ = connection.await;
            drop(place);
        });
    }
}

/// A connection whose client must read the whole output in time, not only its next part.
struct Impatient {
    stream: TcpStream,
    time: Duration,
    /// The timer that runs while there is something to write.
    late: Option<Pin<Box<Sleep>>>,
}

impl Impatient {
    fn in_time<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            return written;
        }
        let time = self.time;
        let late = self.late.get_or_insert_with(|| Box::pin(sleep(time)));
        let timed_out = || Err(ErrorKind::TimedOut.into());
        late.as_mut().poll(context).map(|()| timed_out())
    }
}

impl AsyncRead for Impatient {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(context, buffer)
    }
}

impl AsyncWrite for Impatient {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.in_time(context, written)
    }

    /// Makes hyper write an answer in place, without a copy that is not counted.
    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.in_time(context, written)
    }

    /// Stops the timer: hyper flushes when it has nothing left to write.
    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.late = None;
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}
