//! What a job's command expects of its surroundings: the framework it uses, and the platforms it was written for.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Makes an enum of words: each is written in one way, in files, flags, JSON and messages.
macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $word:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        pub enum $name {
            $($(#[$doc])* $variant,)+
        }

        impl $name {
            /// All of them.
            pub const ALL: &[$name] = &[$($name::$variant),+];
            /// The words, with what they mean.
            pub const WORDS: &[(&str, $name)] = &[$(($word, $name::$variant)),+];

            /// The word.
            pub fn word(self) -> &'static str {
                match self {
                    $($name::$variant => $word,)+
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.word())
            }
        }

        impl FromStr for $name {
            type Err = ();

            fn from_str(text: &str) -> Result<Self, ()> {
                Self::WORDS.iter().find(|(word, _)| *word == text).map(|(_, found)| *found).ok_or(())
            }
        }
    };
}

words! {
    /// A framework whose launch contract a gang is given.
    Framework {
        /// None: every task runs the command, and is told its rank and where rank 0 is.
        Plain = "plain",
        /// PyTorch: `env://` and torchrun.
        Pytorch = "pytorch",
        /// DeepSpeed and its own launcher.
        Deepspeed = "deepspeed",
        /// Horovod.
        Horovod = "horovod",
        /// Open MPI, MPICH, Intel MPI.
        Mpi = "mpi",
        /// JAX.
        Jax = "jax",
        /// TensorFlow: `TF_CONFIG`.
        Tensorflow = "tensorflow",
        /// PaddlePaddle.
        Paddle = "paddle",
        /// MindSpore: rank tables, and its dynamic cluster.
        Mindspore = "mindspore",
    }
}

words! {
    /// A platform whose variables and files a task is given, so that what was written for it runs unchanged.
    Face {
        /// Apulis and DLWorkspace.
        Dlws = "dlws",
        /// Alibaba PAI DLC.
        Dlc = "dlc",
        /// Huawei ModelArts.
        Modelarts = "modelarts",
        /// Slurm: its variables, and an `srun`.
        Slurm = "slurm",
    }
}

words! {
    /// Where the command runs.
    CommandOn {
        /// Every task.
        All = "all",
        /// Task 0; the others wait for what it starts on them, and end with it.
        First = "first",
        /// Every process of every task: the command is started as often as a task has processes, and told which it is.
        Processes = "processes",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_is_the_same_wherever_it_is_written() {
        fn check<T: Serialize + Copy + fmt::Display>(words: &[(&str, T)]) {
            for (word, meant) in words {
                assert_eq!(serde_json::to_value(meant).unwrap(), *word);
                assert_eq!(meant.to_string(), *word);
            }
        }
        check(Framework::WORDS);
        check(Face::WORDS);
        check(CommandOn::WORDS);
    }
}
