//! The way of the parts of one answer, from the client process to whoever waits for them. Most answers have one part, so
//! it is a queue that takes no room until there is one.

use std::{
    collections::VecDeque,
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Poll, Waker},
};

use parking_lot::Mutex;

/// The bytes of the parts of all answers that have not been read.
#[derive(Clone, Debug, Default)]
pub(crate) struct Waiting(Arc<AtomicU64>);

impl Waiting {
    pub(crate) fn bytes(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct State<T> {
    /// The oldest part, with its bytes, and those behind it.
    first: Option<(T, u64)>,
    rest: VecDeque<(T, u64)>,
    /// The bytes of all of them.
    waiting: u64,
    /// Those of other answers, too.
    of_all: Waiting,
    /// Who waits.
    reader: Option<Waker>,
    /// Nothing more will come.
    ended: bool,
}

impl<T> State<T> {
    /// Nobody is interested in what comes behind the end.
    fn push(&mut self, part: T, bytes: u64) {
        if self.ended {
            return;
        }
        self.waiting += bytes;
        self.of_all.0.fetch_add(bytes, Ordering::Relaxed);
        match self.first.is_none() && self.rest.is_empty() {
            true => self.first = Some((part, bytes)),
            false => self.rest.push_back((part, bytes)),
        }
    }

    fn pop(&mut self) -> Option<T> {
        let (part, bytes) = self.first.take().or_else(|| self.rest.pop_front())?;
        self.waiting -= bytes;
        self.of_all.0.fetch_sub(bytes, Ordering::Relaxed);
        Some(part)
    }
}

impl<T> Drop for State<T> {
    fn drop(&mut self) {
        self.of_all.0.fetch_sub(self.waiting, Ordering::Relaxed);
    }
}

/// A way for parts, which count among those of all answers.
pub(crate) fn parts<T>(of_all: Waiting) -> (Writer<T>, Reader<T>) {
    let state = State { first: None, rest: VecDeque::new(), waiting: 0, of_all, reader: None, ended: false };
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
        state.push(part, bytes);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Hands the last part over, in place of all that have not been read.
    pub(crate) fn end_with(&self, part: T) {
        let mut state = self.0.lock();
        let unread: Vec<T> = std::iter::from_fn(|| state.pop()).collect();
        (state.first, state.ended) = (Some((part, 0)), true);
        let reader = state.reader.take();
        drop(state);
        // It may be much, and takes a while.
        drop(unread);
        reader.into_iter().for_each(Waker::wake);
    }

    /// Bytes of the parts that have not been read.
    pub(crate) fn waiting(&self) -> u64 {
        self.0.lock().waiting
    }

    /// Whether somebody may still read them.
    pub(crate) fn has_reader(&self) -> bool {
        Arc::strong_count(&self.0) > 1
    }

    /// Nothing more will come.
    pub(crate) fn end(&self) {
        let mut state = self.0.lock();
        state.ended = true;
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
    }
}

impl<T> Drop for Writer<T> {
    fn drop(&mut self) {
        self.end();
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
            match state.pop() {
                Some(part) => Poll::Ready(Some(part)),
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
        let (writer, mut reader) = parts(Waiting::default());
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
        let of_all = Waiting::default();
        let (writer, mut reader) = parts(of_all.clone());
        let (other, unread) = parts(of_all.clone());
        other.send((), 10);
        (1..=3).for_each(|bytes| writer.send((), bytes));
        for left in [6, 5, 3, 0] {
            assert_eq!((writer.waiting(), reader.waiting(), of_all.bytes()), (left, left, left + 10));
            if left > 0 {
                reader.recv().await.expect("a part");
            }
        }
        drop((other, unread));
        assert_eq!(of_all.bytes(), 0, "nobody will read them");
    }

    #[tokio::test]
    async fn the_last_part_can_come_in_place_of_those_that_wait() {
        let of_all = Waiting::default();
        let (writer, mut reader) = parts(of_all.clone());
        (1..=3).for_each(|part| writer.send(part, 100));
        assert_eq!(reader.recv().await, Some(1));
        writer.end_with(4);
        writer.send(5, 100);
        assert_eq!((writer.waiting(), of_all.bytes()), (0, 0));
        assert_eq!((reader.recv().await, reader.recv().await), (Some(4), None));
    }
}
