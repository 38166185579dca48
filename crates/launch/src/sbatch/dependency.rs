//! `--dependency`: jobs of muster's become what the job waits for, those of a real Slurm are left to it.

/// What a job waits for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Dependency {
    /// Jobs of muster's, as `--after` takes them: `prep:ok`.
    pub after: Vec<String>,
    /// What only a real Slurm knows, as it was written: `afterok:1234`, `singleton`.
    pub slurm: Vec<String>,
}

/// Conditions of Slurm's, with what `--after` calls them.
const CONDITIONS: [(&str, &str); 3] = [("afterok", "ok"), ("afterany", "any"), ("afternotok", "failed")];

/// Reads the value of the option. All of its parts must hold.
pub(super) fn read(value: &str) -> Result<Dependency, String> {
    let mut found = Dependency::default();
    if value.contains('?') {
        return match value.split(['?', ',', ':']).skip(1).all(|word| is_number(word) || is_condition(word)) {
            true => Ok(Dependency { slurm: vec![value.to_owned()], ..found }),
            false => Err(format!(
                "`{value}`: `?` is for jobs of a real Slurm; jobs of muster's are all waited for"
            )),
        };
    }
    for part in value.split(',').filter(|part| !part.is_empty()) {
        let (condition, jobs) = part.split_once(':').unwrap_or((part, ""));
        if condition == "singleton" && jobs.is_empty() {
            found.slurm.push(part.to_owned());
            continue;
        }
        if !is_condition(condition) || jobs.is_empty() {
            return Err(format!(
                "`{part}` is not a dependency; write afterok:JOB, afterany:JOB or afternotok:JOB"
            ));
        }
        let (theirs, ours): (Vec<&str>, Vec<&str>) = jobs.split(':').partition(|job| is_number(job));
        if !theirs.is_empty() {
            found.slurm.push(format!("{condition}:{}", theirs.join(":")));
        }
        let on = CONDITIONS.iter().find(|(name, _)| *name == condition).map(|(_, on)| on);
        match (on, ours.as_slice()) {
            (_, []) => {}
            (Some(on), jobs) => found.after.extend(jobs.iter().map(|job| format!("{job}:{on}"))),
            (None, [job, ..]) => {
                return Err(format!(
                    "`{condition}` is for jobs of a real Slurm; of {job}, write afterok, afterany or afternotok"
                ));
            }
        }
    }
    Ok(found)
}

fn is_condition(word: &str) -> bool {
    word == "after" || word == "aftercorr" || CONDITIONS.iter().any(|(name, _)| *name == word)
}

/// Slurm's jobs have numbers, also with an index (`12_3`, `12_*`) and a delay in minutes (`12+5`); muster's have none.
fn is_number(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_digit())
        && word.chars().all(|c| c.is_ascii_digit() || matches!(c, '_' | '*' | '+'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jobs_of_muster_are_waited_for_and_those_of_slurm_left_to_it() {
        for (value, after, slurm) in [
            ("afterok:prep", vec!["prep:ok"], vec![]),
            ("afterany:job_0123456789:data", vec!["job_0123456789:any", "data:any"], vec![]),
            ("afternotok:prep,afterok:data", vec!["prep:failed", "data:ok"], vec![]),
            ("afterok:1234:1235", vec![], vec!["afterok:1234:1235"]),
            ("afterok:1234:prep", vec!["prep:ok"], vec!["afterok:1234"]),
            ("after:12+5,aftercorr:12_*", vec![], vec!["after:12+5", "aftercorr:12_*"]),
            ("singleton", vec![], vec!["singleton"]),
            ("afterok:12?afterany:13", vec![], vec!["afterok:12?afterany:13"]),
        ] {
            let found = read(value).unwrap();
            assert_eq!((found.after, found.slurm), (own(&after), own(&slurm)), "{value}");
        }
        for value in ["prep", "afterok", "afterok:", "soon:prep", "after:prep", "afterok:a?afterok:b"] {
            assert!(read(value).is_err(), "{value}");
        }
    }

    fn own(words: &[&str]) -> Vec<String> {
        words.iter().map(|word| (*word).to_owned()).collect()
    }
}
