//! The way of the parts of one answer, from the client process to whoever waits for them. Most answers have one part, so
//! it is a queue that takes no room until there is one.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
};

use parking_lot::Mutex;

#[derive(Debug)]
struct State<T> {
    /// The oldest part, with its bytes, and those behind it.
    first: Option<(T, u64)>,
    rest: VecDeque<(T, u64)>,
    /// The bytes of all of them.
    waiting: u64,
    /// Who waits.
    reader: Option<Waker>,
    /// Nothing more will come.
    ended: bool,
}

/// A way for parts.
pub(crate) fn parts<T>() -> (Writer<T>, Reader<T>) {
    let state = State { first: None, rest: VecDeque::new(), waiting: 0, reader: None, ended: false };
    let state = Arc::new(Mutex::new(state));
    (Writer(state.clone()), Reader(state))
}

/// Where parts go in.
#[derive(Debug)]
pub(crate) struct Writer<T>(Arc<Mutex<State<T>>>);

impl<T> Writer<T> {
    /// Hands a part of so many bytes over; it is dropped with the reader if that one is not interested any more.
    pub(crate) fn send(&self, part: T, bytes: u64) {
        let mut state = self.0.lock();
        state.waiting += bytes;
        match state.first.is_none() && state.rest.is_empty() {
            true => state.first = Some((part, bytes)),
            false => state.rest.push_back((part, bytes)),
        }
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Bytes of the parts that have not been read.
    pub(crate) fn waiting(&self) -> u64 {
        self.0.lock().waiting
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        let mut state = self.0.lock();
        state.ended = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }
}

/// Where parts come out.
#[derive(Debug)]
pub(crate) struct Reader<T>(Arc<Mutex<State<T>>>);

impl<T> Reader<T> {
    /// The next part; `None` when the writer is gone and all has been read. Safe to cancel.
    pub(crate) async fn recv(&mut self) -> Option<T> {
        poll_fn(|context| {
            let mut state = self.0.lock();
            match state.first.take().or_else(|| state.rest.pop_front()) {
                Some((part, bytes)) => {
                    state.waiting -= bytes;
                    Poll::Ready(Some(part))
                }
                None if state.ended => Poll::Ready(None),
                None => {
                    state.reader = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Bytes of the parts that have not been read.
    pub(crate) fn waiting(&self) -> u64 {
        self.0.lock().waiting
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn parts_come_in_order_and_then_the_end() {
        let (writer, mut reader) = parts();
        let reading = tokio::spawn(async move {
            let mut read = Vec::new();
            while let Some(part) = reader.recv().await {
                read.push(part);
            }
            read
        });
        for part in 0..100 {
            writer.send(part, 1);
            if part % 3 == 0 {
                tokio::task::yield_now().await;
            }
        }
        drop(writer);
        assert_eq!(reading.await.expect("it reads"), (0..100).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn bytes_wait_until_they_are_read() {
        let (writer, mut reader) = parts();
        (1..=3).for_each(|bytes| writer.send((), bytes));
        for left in [6, 5, 3, 0] {
            assert_eq!((writer.waiting(), reader.waiting()), (left, left));
            if left > 0 {
                reader.recv().await.expect("a part");
            }
        }
    }
}
