//! Files of the folder are read beside the thread that serves, one at a time, and not waited for without end: a file system
//! that hangs stops neither requests nor the end of the server.

use crate::refusal::{Refusal, Why};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::timeout;

/// For how long a folder is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

pub struct Files {
    /// Held by who reads, also when nobody waits for it any more.
    one: Arc<Mutex<()>>,
    patience: Duration,
}

impl Default for Files {
    fn default() -> Files {
        Files::new(PATIENCE)
    }
}

impl Files {
    fn new(patience: Duration) -> Files {
        Files {
            one: Arc::default(),
            patience,
        }
    }

    /// What `read` gives.
    ///
    /// # Errors
    /// [`Why::Internal`] for its error, [`Why::NotReady`] when it takes too long.
    pub async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<T, Refusal> {
        let patience = self.patience;
        let slow = |_| {
            let message = format!("the folder of models does not answer within {patience:?}");
            Refusal::new(Why::NotReady, message)
        };
        let turn = timeout(patience, self.one.clone().lock_owned());
        let turn = turn.await.map_err(slow)?;
        let reading = tokio::task::spawn_blocking(move || {
            let _turn = turn;
            read()
        });
        let result = timeout(patience, reading).await.map_err(slow)?;
        let result = result.unwrap_or_else(|_| Err("reading the folder ended with a panic".into()));
        result.map_err(|reason| Refusal::new(Why::Internal, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn who_waits_for_a_file_system_that_hangs_is_refused() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()
            .unwrap();
        let (end, hangs) = mpsc::channel::<()>();
        runtime.block_on(async {
            let files = Files::new(Duration::from_secs(60));
            assert_eq!(files.read(|| Ok(7)).await, Ok(7));
            let failed = files.read(|| Err::<(), _>("gone".into())).await;
            assert_eq!(failed.unwrap_err().why, Why::Internal);
            let files = Files::new(Duration::from_millis(20));
            let hung = files.read(move || hangs.recv().map_err(|e| e.to_string()));
            assert_eq!(hung.await.unwrap_err().why, Why::NotReady);
            let next = files.read(|| Ok(7)).await;
            assert!(next.unwrap_err().message.contains("does not answer"));
            drop(end);
        });
    }
}
