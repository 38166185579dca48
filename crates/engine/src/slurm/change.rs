//! Changes to a job that waits in Slurm, in the words of `scontrol`. Pure.

use muster_model::spec::DEFAULT_PRIORITY;

use super::batch::Wishes;
use super::refusal::{self, Kind};
use crate::{Class, Error, GangChange};

/// What `scontrol` is told. A user may hold and release their own jobs, and let other jobs go before them; every job keeps the
/// `--nice` that its operator wants of all.
pub(super) fn scontrol(change: GangChange, id: &str, wishes: &Wishes) -> Result<Vec<String>, Error> {
    let words = match change {
        // The hold of an administrator is not the user's to release.
        GangChange::Hold => vec!["uhold".to_owned(), id.to_owned()],
        GangChange::Release => vec!["release".to_owned(), id.to_owned()],
        GangChange::Priority(priority) => {
            let own = DEFAULT_PRIORITY.checked_sub(priority).ok_or_else(too_high)?;
            let nice = wishes.nice().unwrap_or(0).saturating_add(own.into());
            vec!["update".to_owned(), format!("jobid={id}"), format!("nice={nice}")]
        }
    };
    Ok(std::iter::once("scontrol".to_owned()).chain(words).collect())
}

fn too_high() -> Error {
    Error::terminal(format!(
        "Slurm has the job, and there no user's job goes before others: {DEFAULT_PRIORITY} is the highest priority"
    ))
}

/// What it means that `scontrol` failed: Slurm refuses the change, or was not reached.
pub(super) fn failed(change: GangChange, error: Error) -> Error {
    let Some(said) = error.what.strip_prefix("scontrol: ") else { return error };
    if refusal::of_submission(Some(1), said) != Kind::Refused {
        return error;
    }
    let help = match change {
        GangChange::Priority(_) if said.contains("ermission denied") => {
            "; there a user may lower the priority of a job, and only an administrator may raise it again"
        }
        GangChange::Release if said.contains("ermission denied") => "; an administrator of Slurm holds it",
        GangChange::Hold | GangChange::Release | GangChange::Priority(_) => "",
    };
    Error::terminal(format!("Slurm refuses the change: {said}{help}"))
}

/// Slurm has no job of the gang yet.
pub(super) fn not_there() -> Error {
    Error { what: "Slurm does not have the job yet".into(), class: Class::Retryable, source: None }
}

/// The job has begun, or is over.
pub(super) fn not_waiting(id: &str) -> Error {
    Error::terminal(format!("job {id} does not wait in Slurm any more"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_are_what_a_user_may_tell_scontrol() {
        let said = |change, wishes: &Wishes| {
            scontrol(change, "17", wishes).map(|words| words.join(" ")).map_err(|error| error.what)
        };
        let words = |change| said(change, &Wishes::default());
        assert_eq!(words(GangChange::Hold).unwrap(), "scontrol uhold 17");
        assert_eq!(words(GangChange::Release).unwrap(), "scontrol release 17");
        assert_eq!(words(GangChange::Priority(400)).unwrap(), "scontrol update jobid=17 nice=100");
        assert_eq!(words(GangChange::Priority(500)).unwrap(), "scontrol update jobid=17 nice=0");
        let refused = words(GangChange::Priority(501)).unwrap_err();
        assert!(refused.contains("500 is the highest"), "{refused}");
        let wishes = Wishes { options: vec!["--nice=1000".into()], ..Wishes::default() };
        let nice = |priority| said(GangChange::Priority(priority), &wishes).unwrap();
        assert_eq!(nice(500), "scontrol update jobid=17 nice=1000", "the operator's stays");
        assert_eq!(nice(400), "scontrol update jobid=17 nice=1100");
    }

    #[test]
    fn what_slurm_refuses_is_told_from_a_slurm_that_is_away() {
        let of = |what: &str| {
            let error = Error { what: what.into(), class: Class::Retryable, source: None };
            failed(GangChange::Priority(500), error)
        };
        let denied = of("scontrol: Access/permission denied for job 17");
        assert_eq!(denied.class, Class::Terminal);
        assert!(denied.what.contains("only an administrator may raise it"), "{denied}");
        let away = of("scontrol: Unable to contact slurm controller (connect failure)");
        assert_eq!(away.class, Class::Retryable);
        assert_eq!(of("the gate on the login node: gone").class, Class::Retryable);
    }
}
