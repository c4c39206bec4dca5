//! Pins: several reads at one `Ts` (DESIGN, decision 6).

use std::time::Duration;

use carousel_engine::{SqlError, Ts};
use tokio::{sync::oneshot, task::AbortHandle};

use super::{Client, Command, Failure, Part, Request};
use crate::message::Body;

/// A held `Ts`: reads whose `read_ts` is [`Pin::ts`] see the same rows until this is dropped. When the storage
/// processes did not hear from this client for a whole lease, such a read fails with 40001.
#[derive(Debug)]
pub struct Pin {
    ts: Ts,
    client: Client,
    renewal: AbortHandle,
}

impl Pin {
    pub(super) async fn acquire(client: &Client, lease: Duration) -> Result<Pin, Failure> {
        let lease_ms = u32::try_from(lease.as_millis()).unwrap_or(u32::MAX).max(100);
        let request =
            Request { tables: Default::default(), ranges: Default::default(), body: Body::Pin { lease_ms } };
        let submission = client.submit(request).await?;
        let acquiring = client.clone();
        let (mut sender, receiver) = oneshot::channel();
        let answered = move |answer| Pin::answered(acquiring, answer, lease_ms);
        tokio::spawn(async move {
            let nobody_waits = async {
                sender.closed().await;
                tokio::time::sleep(lease).await;
            };
            let acquired = tokio::select! {
                answer = submission.finish() => answer.and_then(answered),
                () = nobody_waits => return,
            };
            // What nobody has waited for is released: the storage processes would keep what it sees for a whole lease.
            let _ = sender.send(acquired);
        });
        receiver.await.unwrap_or_else(|_| Err(client.stopped().into()))
    }

    fn answered(client: Client, answer: Part, lease_ms: u32) -> Result<Pin, Failure> {
        let Part::Done { ts, .. } = answer else {
            return Err(SqlError::internal(format!("a pin was answered by {answer:?}")).into());
        };
        let renewing = client.clone();
        let period = Duration::from_millis(u64::from(lease_ms) / 4);
        let renewal = tokio::spawn(async move {
            loop {
                tokio::time::sleep(period).await;
                if renewing.command(Command::RenewPin(ts)).is_err() {
                    return;
                }
            }
        });
        Ok(Pin { ts, client, renewal: renewal.abort_handle() })
    }

    /// What reads under this pin see: everything that was ordered before it.
    pub fn ts(&self) -> Ts {
        self.ts
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.renewal.abort();
        // A stopped client process has nobody to tell; the lease runs out.
        let _ = self.client.command(Command::ReleasePin(self.ts));
    }
}
