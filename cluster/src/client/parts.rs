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
    queue: VecDeque<T>,
    /// Who waits.
    reader: Option<Waker>,
    /// Nothing more will come.
    ended: bool,
}

/// A way for parts.
pub(crate) fn parts<T>() -> (Writer<T>, Reader<T>) {
    let state = Arc::new(Mutex::new(State { queue: VecDeque::new(), reader: None, ended: false }));
    (Writer(state.clone()), Reader(state))
}

/// Where parts go in.
#[derive(Debug)]
pub(crate) struct Writer<T>(Arc<Mutex<State<T>>>);

impl<T> Writer<T> {
    /// Hands a part over; it is dropped with the reader if that one is not interested any more.
    pub(crate) fn send(&self, part: T) {
        let mut state = self.0.lock();
        state.queue.push_back(part);
        let reader = state.reader.take();
        drop(state);
        reader.into_iter().for_each(Waker::wake);
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
            match state.queue.pop_front() {
                None if !state.ended => {
                    state.reader = Some(context.waker().clone());
                    Poll::Pending
                }
                part => Poll::Ready(part),
            }
        })
        .await
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
            writer.send(part);
            tokio::task::yield_now().await;
        }
        drop(writer);
        assert_eq!(reading.await.expect("it reads"), (0..100).collect::<Vec<_>>());
    }
}
