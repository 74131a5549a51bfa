//! Runs many plans at once, each in its own world and on its own runtime.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

use crate::sim::{InstanceFactory, Plan, Report, run};
use crate::simulate::Failure;

/// Runs one plan.
pub fn play(plan: &Plan, factory: &dyn InstanceFactory, verbose: bool) -> Result<Report, Failure> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build()?;
    Ok(runtime.block_on(run(plan, factory, verbose))?)
}

/// Does the work on every item with this many threads, and passes on each result as soon as it is available.
pub fn each<I, T>(
    items: &[I],
    threads: usize,
    work: impl Fn(I) -> Result<T, Failure> + Sync,
    mut then: impl FnMut(T),
) -> Result<(), Failure>
where
    I: Copy + Send + Sync,
    T: Send,
{
    let (next, (results, done)) = (AtomicUsize::new(0), mpsc::channel());
    thread::scope(|scope| {
        for _ in 0..threads.min(items.len()) {
            let (results, items, next, work) = (results.clone(), &items, &next, &work);
            scope.spawn(move || {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // After a failure the receiver is gone.
                    if results.send(work(*item)).is_err() {
                        return;
                    }
                }
            });
        }
        drop(results);
        let mut count = 0;
        while count < items.len() {
            then(done.recv().map_err(|_| "a thread ended unexpectedly")??);
            count += 1;
        }
        drop(done);
        Ok(())
    })
}
