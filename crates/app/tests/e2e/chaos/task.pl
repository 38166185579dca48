# The program of every job of a chaos run. It leaves a trace of each start and each end outside of muster, in one file of which
# every line is written at once, and writes numbered lines to both outputs, of which it counts those that it has written.
use strict;
my ($name, $work, $lines, $burst, $exit_code, $failing) = @ARGV;
my ($attempt, $rank, $index) = ($ENV{MUSTER_ATTEMPT}, $ENV{MUSTER_RANK}, $ENV{MUSTER_ARRAY_INDEX} // 0);
my $traces = "$ENV{SHARED}/traces";

sub trace {
    open(my $file, '>>', $traces) or die "$traces: $!";
    syswrite($file, "$_[0] $name $attempt $rank $index\n") or die "$traces: $!";
    close($file);
}

sub put {
    my ($output, $line) = @_;
    my $written = syswrite($output, $line);
    die "wrote less than a line: $!" unless defined $written && $written == length $line;
}

trace('began');
my $counted = "$ENV{SHARED}/count.$name.$attempt.$rank.$index";
open(my $count, '>>', $counted) or die "$counted: $!";
for my $i (0 .. $lines - 1) {
    my $rest = "$name $attempt $rank $index $i " . 'x' x ($i * 37 % 100) . "\n";
    put(\*STDOUT, "out $rest");
    put(\*STDERR, "err $rest");
    put($count, '.');
    select(undef, undef, undef, 0.001) if $i % $burst == $burst - 1;
}
while ($work eq 'endless' || $work eq 'waits' && !-e "$ENV{SHARED}/go") {
    select(undef, undef, undef, 0.02);
}
trace('ended');
if ($work eq 'fails-first') {
    open(my $file, '<', $traces) or die "$traces: $!";
    my $ends = grep { /^ended \Q$name\E / } <$file>;
    exit(9) if $ends <= $failing;
}
exit($work eq 'array' && $index > $failing ? 0 : $exit_code);
