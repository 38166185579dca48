//! What can go wrong on this side of the server, each with its code, its meaning and its remedy.

use super::Kind;

muster_api::model::catalogue! {
    /// What a command fails with by itself. What a server refuses has the codes of `muster_api::Code`, and what is
    /// wrong with a field those of `FieldCode`.
    pub(crate) enum Code {
        /// The file is no backup, not all of one, damaged, or made by a newer muster.
        BackupUnusable = "backup_unusable" => "Take another backup, or the one before it; of a newer muster, install that one first.",
        /// A file of the code directory changes all the time, so that no one state of it could be read.
        BundleFileChanges = "bundle_file_changes" => "Wait until it is at rest, or leave it out: write its name into .musterignore.",
        /// A file or a folder of the code directory cannot be read.
        BundleFileUnreadable = "bundle_file_unreadable" => "Make it readable, or leave it out: write its name into .musterignore.",
        /// A file of the code directory has a name that cannot be sent.
        BundleNameInvalid = "bundle_name_invalid" => "Rename it, or leave it out: write its name into .musterignore.",
        /// The server asks again and again for parts of the code that were sent.
        BundleRefused = "bundle_refused" => "Look into the server's log; its disk may be failing.",
        /// The command itself failed in a way that it should not.
        ClientInternal = "client_internal" => "Report it, with the command line and the version (`muster version`).",
        /// The server shows another certificate than the one that is pinned: it was replaced, or somebody else answers.
        CertificateChanged = "certificate_changed" => "Ask whoever runs the server. If it was replaced, pin the new one: --fingerprint, MUSTER_FINGERPRINT, or `muster context add`; if not, somebody is between you and the server.",
        /// The server's certificate is nobody's whom this machine believes, and is not pinned.
        CertificateUnknown = "certificate_unknown" => "Compare its fingerprint with what `muster server status` says on the server's machine, and pin it: --fingerprint, MUSTER_FINGERPRINT, or `muster context add`.",
        /// What was asked for is something that only a cloud has.
        CloudOnly = "cloud_only" => "Do without it: hosts of a pool and this machine have no security groups, prices or images.",
        /// The shell of a session ended before the command did, or before it could begin.
        CommandLost = "command_lost" => "Open the session anew with --fresh; `muster session output` shows what the command wrote.",
        /// The session was given no command yet.
        SessionUnused = "session_unused" => "Give it one: `muster session run JOB -- COMMAND`; `muster session ls JOB` lists the sessions.",
        /// A word of the command is not valid UTF-8, and a job is stored as text.
        CommandNotUtf8 = "command_not_utf8" => "Rename the file that it names, or call it from a script.",
        /// The job's code was in no git repository with a commit, so that there is nothing to compare it with.
        CommitUnknown = "commit_unknown" => "Submit from a git repository with a commit; then the commit and what differs from it are kept.",
        /// config.toml cannot be read, or says something that is not to be.
        ConfigInvalid = "config_invalid" => "Correct it; `muster config path` says where it is.",
        /// The connection to the server broke, and the server did not come back.
        ConnectionLost = "connection_lost" => "Look whether the server runs (`muster server status`), then `muster ps` to see what was done.",
        /// A context cannot be called so, or not be changed.
        ContextInvalid = "context_invalid" => "Choose another name; `muster context ls` lists those that there are.",
        /// The file with the contexts cannot be read or written.
        ContextsUnusable = "contexts_unusable" => "Mend what the message says, or remove the file: `muster context add` makes it anew.",
        /// A copy to or from a task could not go on.
        CopyFailed = "copy_failed" => "Mend what the message says; the same command then goes on where it was.",
        /// Some files were not copied; the others were.
        CopyIncomplete = "copy_incomplete" => "Mend what the lines say; the same command then copies what is missing.",
        /// The current directory cannot be found.
        CurrentDirectoryMissing = "current_directory_missing" => "It may have been removed: `cd` to another one.",
        /// The disk of this machine is full.
        DiskFull = "disk_full" => "Free space on the disk of the file that the message names.",
        /// A file would be written over one that is there.
        FileExists = "file_exists" => "Replace it with --force, or choose another place with -o DEST.",
        /// A file cannot be written where it was asked for.
        FileUnwritable = "file_unwritable" => "Check your rights to the place, or choose another one with -o DEST.",
        /// The fingerprint of a certificate cannot be read, or there is no certificate to compare it with.
        FingerprintInvalid = "fingerprint_invalid" => "Write it as `muster server status` says it on the server's machine, sha256: and 64 hexadecimal digits, and https:// in the address.",
        /// A host of a pool cannot be reached, or not be used.
        HostUnreachable = "host_unreachable" => "Mend what the lines say, and try again; `ssh HOST` must come in without a password.",
        /// The directory that a server is to be restored into is not empty, or is a running server's.
        HomeNotEmpty = "home_not_empty" => "Choose an empty directory with --home DIR; or stop the server there and move its directory away.",
        /// Muster's own folder cannot be made or used.
        HomeUnusable = "home_unusable" => "MUSTER_HOME moves muster's data to another directory.",
        /// There is a job file already, and it is not written over.
        JobFileExists = "job_file_exists" => "Read it: `muster run FILE` runs it; --force writes a new one in its place.",
        /// The job file is not a job: no YAML, no map of fields, or no text.
        JobFileInvalid = "job_file_invalid" => "Correct it at the line that is named; a job is a map of fields such as `command: python train.py`.",
        /// The job file is too large for a job.
        JobFileTooLarge = "job_file_too_large" => "Is it the right file? A job names its data, it does not contain it.",
        /// The job file cannot be opened or read.
        JobFileUnreadable = "job_file_unreadable" => "Check the path and your rights to the file.",
        /// The job file cannot be written.
        JobFileUnwritable = "job_file_unwritable" => "Check your rights to the directory.",
        /// A part of a job's log is damaged on the server's disk.
        LogDamaged = "log_damaged" => "`muster server check` on the server's machine says what else is damaged; a backup may have the log whole.",
        /// Machines of this name exist, and are others than were asked for.
        MachineMismatch = "machine_mismatch" => "Kill them, or use another name; `muster machine ls` shows what they are.",
        /// There is no machine of this name that is not over.
        MachineNotFound = "machine_not_found" => "`muster machine ls` lists them; `muster machine create NAME` makes one.",
        /// There is no place for muster's own folder.
        NoHome = "no_home" => "Set MUSTER_HOME to a directory of yours, for example /data/ada/muster.",
        /// The machines have no directory in common.
        NoSharedDirectory = "no_shared_directory" => "Mount a volume on the hosts and name it: `muster pool add POOL HOST --shared DIR`.",
        /// A directory was named where only a file will do.
        NotAFile = "not_a_file" => "Name a file, or a place for the directory with -o DEST.",
        /// Whoever read the output has gone; nothing is said, as nobody is there to read it.
        OutputClosed = "output_closed" => "Nothing: a command whose output goes to `head` ends like this.",
        /// The output of the command cannot be written.
        OutputFailed = "output_failed" => "Check the disk or the terminal that stdout goes to, or the path that --output names.",
        /// A policy of the scheduler cannot be read, or says what cannot be meant.
        PolicyInvalid = "policy_invalid" => "Correct the field that is named; `muster sim --help` lists the policies that have a name.",
        /// A port of this machine cannot be listened on.
        PortUnusable = "port_unusable" => "Choose another one, LOCAL:REMOTE, or :REMOTE for any that is free.",
        /// The server's address cannot be read.
        ServerAddressInvalid = "server_address_invalid" => "Set MUSTER_SERVER to https://HOST:PORT, http://HOST:PORT or unix:/PATH, or unset it.",
        /// Whatever answers is not a muster server, or not one of about this version.
        ServerForeign = "server_foreign" => "Check that MUSTER_SERVER is the address of a muster server, of about the version of this client.",
        /// The server that is named is not the private one, and not this command's to start or stop.
        ServerNotPrivate = "server_not_private" => "Unset MUSTER_SERVER, or write --context local, to speak of the private server.",
        /// The server took the connection and then said nothing for too long.
        ServerSilent = "server_silent" => "Look whether the server's machine is overloaded; `muster server stop` ends a private server, its jobs keep running.",
        /// The private server could not be started.
        ServerStartFailed = "server_start_failed" => "Read the lines of its log below the message.",
        /// The private server runs but does not answer, or does not end.
        ServerStuck = "server_stuck" => "End the process that the message names; its jobs keep running.",
        /// No connection to the server could be made.
        ServerUnreachable = "server_unreachable" => "Check that it runs and that MUSTER_SERVER is its address; without MUSTER_SERVER a private server is used.",
        /// ssh's configuration cannot be read or changed, or cannot name what it has to.
        SshConfigUnusable = "ssh_config_unusable" => "Check your rights to ~/.ssh and its files; `muster ssh-config` prints what would be added, to be put there by hand.",
        /// Something was written to the standard input of `muster run`, and the tasks of a job have none.
        StdinNotPassed = "stdin_not_passed" => "Write it to a file in the code directory and read that, or add `< /dev/null`; `muster exec -i JOB` passes standard input to a program in a task.",
        /// The operating system refused something that every command needs.
        SystemFailed = "system_failed" => "Read the system's words in the message; limits of processes or open files may be reached.",
        /// The connection to a task broke before what was done over it had ended.
        TaskLost = "task_lost" => "`muster show JOB` says whether the task still runs; what was started in it may go on.",
        /// The job has no task of this rank.
        TaskNotFound = "task_not_found" => "Ranks count from 0; `muster show JOB` lists the tasks.",
        /// The job does not run now, so that nobody can come into its tasks.
        TaskNotRunning = "task_not_running" => "--wait waits until it runs; `muster why JOB` says what it waits for, or why it ended.",
        /// A task was reached and would not do what was asked of it.
        TaskRefused = "task_refused" => "Look into inside.log of the task's directory; its node may run another version of muster.",
        /// The server's token cannot be sent.
        TokenInvalid = "token_invalid" => "Set MUSTER_TOKEN to the token as it was given to you, one line of plain characters.",
        /// The server was reached, and TLS could not be spoken with it.
        TlsFailed = "tls_failed" => "Check whether the address is right: https:// where the server speaks TLS, http:// where it does not.",
        /// There is no context of this name.
        NoSuchContext = "no_such_context" => "`muster context ls` lists them; `muster context add NAME URL` adds one.",
        /// There is no error of this code.
        NoSuchError = "no_such_error" => "`muster explain` lists all codes.",
        /// There is no setting of this name.
        NoSuchSetting = "no_such_setting" => "`muster config` lists all settings.",
        /// A setting cannot have this value.
        SettingInvalid = "setting_invalid" => "Choose a value as the message says; `muster config` shows what each setting means.",
        /// A trace of work cannot be read, or a line of it is wrong.
        TraceInvalid = "trace_invalid" => "Correct the line that is named; `muster sim --help` shows what a trace has.",
        /// The command line cannot be read.
        Usage = "usage" => "`muster COMMAND --help` shows how the command is written, with examples.",
        /// The jobs were not over within the time given; they go on.
        WaitTimeout = "wait_timeout" => "`muster ps` shows them, `muster why JOB` says what one waits for.",
        /// The code directory would be the whole home directory or the whole machine, which nobody means to copy.
        WorkdirTooWide = "workdir_too_wide" => "cd to your project; or --in-place to run here without a copy; or --workdir . to copy it all the same.",
    }
}

impl Code {
    /// Whose fault it is, and with that the exit code.
    pub const fn kind(self) -> Kind {
        match self {
            Self::BackupUnusable
            | Self::BundleFileChanges
            | Self::BundleFileUnreadable
            | Self::BundleNameInvalid
            | Self::SessionUnused
            | Self::CommandNotUtf8
            | Self::CommitUnknown
            | Self::ContextInvalid
            | Self::ContextsUnusable
            | Self::FingerprintInvalid
            | Self::NoSuchContext
            | Self::ConfigInvalid
            | Self::FileExists
            | Self::FileUnwritable
            | Self::HomeNotEmpty
            | Self::JobFileExists
            | Self::NotAFile
            | Self::JobFileInvalid
            | Self::JobFileTooLarge
            | Self::JobFileUnreadable
            | Self::CloudOnly
            | Self::MachineMismatch
            | Self::MachineNotFound
            | Self::NoSharedDirectory
            | Self::NoHome
            | Self::PortUnusable
            | Self::ServerAddressInvalid
            | Self::ServerNotPrivate
            | Self::PolicyInvalid
            | Self::TaskNotFound
            | Self::TaskNotRunning
            | Self::TraceInvalid
            | Self::TokenInvalid
            | Self::NoSuchError
            | Self::NoSuchSetting
            | Self::SettingInvalid
            | Self::StdinNotPassed
            | Self::Usage
            | Self::WorkdirTooWide => Kind::Input,
            Self::BundleRefused
            | Self::CertificateChanged
            | Self::CertificateUnknown
            | Self::TlsFailed
            | Self::ClientInternal
            | Self::CommandLost
            | Self::ConnectionLost
            | Self::CopyFailed
            | Self::CopyIncomplete
            | Self::CurrentDirectoryMissing
            | Self::DiskFull
            | Self::HomeUnusable
            | Self::HostUnreachable
            | Self::JobFileUnwritable
            | Self::LogDamaged
            | Self::OutputFailed
            | Self::ServerForeign
            | Self::ServerSilent
            | Self::ServerStartFailed
            | Self::ServerStuck
            | Self::ServerUnreachable
            | Self::SshConfigUnusable
            | Self::SystemFailed
            | Self::TaskLost
            | Self::TaskRefused => Kind::Failed,
            Self::WaitTimeout => Kind::Timeout,
            Self::OutputClosed => Kind::OutputClosed,
        }
    }
}
