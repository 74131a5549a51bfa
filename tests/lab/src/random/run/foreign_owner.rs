//! The steps of the foreign owner in a run.

use rand::RngExt;

use super::Run;
use crate::random::foreign::{Acting, Belief};
use crate::random::incarnation::{Done, UnderWay};
use crate::random::judge::{Adopted, Intent, Purpose};
use crate::random::server::INTENT;

impl Run {
    pub(super) fn foreign_acts(&mut self) {
        let action = self.rng.random_range(0..100);
        let steal = self.chance(0.1);
        let processes = self.rng.random_range(0..10);
        let Some(foreign) = &mut self.foreign else { return };
        if action < 2 {
            self.judge.lock().note(foreign.id, "crashes");
            foreign.belief = None;
            if let Some(under_way) = foreign.under_way.take() {
                under_way.abort.abort();
            }
            return;
        }
        if foreign.under_way.is_some() {
            return;
        }
        let acting = Acting { judge: self.judge.clone(), container: foreign.container.clone() };
        let Some(mut belief) = foreign.belief.clone() else { return self.foreign_begins(acting.seek(steal)) };
        let Some(at) = belief.at else { return self.foreign_begins(acting.start(belief)) };
        match action {
            2..4 => self.foreign_begins(acting.release(belief)),
            4..10 => self.foreign_begins(acting.renew(belief)),
            _ => {
                let to = self.published.min(at + processes);
                if to > at {
                    self.judge.lock().processes(foreign.id, None, at + 1, to);
                    belief.at = Some(to);
                    foreign.belief = Some(belief.clone());
                    self.foreign_begins(acting.checkpoint(belief, to));
                }
            }
        }
    }

    fn foreign_begins(&mut self, doing: impl Future<Output = Done> + Send + 'static) {
        let Some(foreign) = &mut self.foreign else { return };
        let (id, operation) = (foreign.id, self.begun);
        self.begun += 1;
        let intent = Intent { operation, purpose: Purpose::Own, adopted: Adopted::default() };
        let doing = INTENT.scope(intent, async move { (id, operation, doing.await) });
        foreign.under_way = Some(UnderWay { operation, abort: self.operations.spawn(doing) });
    }

    pub(super) fn foreign_done(&mut self, operation: u64, belief: Option<Belief>) {
        if let Some(foreign) = &mut self.foreign
            && foreign.under_way.take_if(|it| it.operation == operation).is_some()
        {
            foreign.belief = belief;
        }
    }
}
