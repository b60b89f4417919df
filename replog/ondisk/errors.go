package ondisk

import (
	"fmt"
	"path"

	"github.com/seed70370324/lockd/replog/codec"
)

// DamagedError says that what is on disk is not what was made durable there:
// it was changed or lost afterwards. A replica that has forgotten a vote could
// make two values be chosen in one slot, so it does not start with this data.
// Nothing was changed by looking.
type DamagedError struct {
	Dir    string // data directory, if known
	File   string // within it
	Offset int64
	What   string
	// Doubtful: only the last flush is bad, and its mark names it. It may have
	// been acknowledged (then the disk lost it) or not (then a power cut tore
	// it); one replica alone cannot know.
	Doubtful bool
}

func (e *DamagedError) Error() string {
	where := ""
	if e.Dir != "" {
		where = "in " + e.Dir + " "
	}
	doubt := ""
	if e.Doubtful {
		doubt = " (a torn last write or a bad sector: this cannot be told from here)"
	}
	return "the data " + where + "is damaged: " + e.Place() + doubt +
		"; the replica may have forgotten votes and does not start with it." +
		" The others go on without it. Keep a copy of the directory; if the disk had an error, bring back" +
		" the very same files from the disk itself, never from an older copy"
}

// Place says what is wrong where, for those to whom it is no reason to stop.
func (e *DamagedError) Place() string {
	return fmt.Sprintf("%s, byte %d: %s", e.File, e.Offset, e.What)
}

// ForeignError says that the directory holds another replica's data, or
// something that is no replica's data at all.
type ForeignError struct {
	Dir                      string
	FoundCell, FoundReplica  string // empty: no replica's data
	AskedCell, AskedReplica  string
	Found                    string // what else is there, if it is no replica's data
	FoundIncarnation, Wanted uint64 // differ: files of another life of this replica
}

func (e *ForeignError) Error() string {
	dir := "the data directory"
	if e.Dir != "" {
		dir = e.Dir
	}
	switch {
	case isDataName(e.Found):
		return fmt.Sprintf("%s has the data of a replica (%s), but no file %s, which says whose they are: if they are those of replica %q of cell %q, "+
			"put the very same file back, or leave the replica stopped; else give it an empty directory",
			dir, e.Found, IdentityName, e.AskedReplica, e.AskedCell)
	case e.Found != "":
		return fmt.Sprintf("%s is not empty and is no replica's data (%s): give replica %q of cell %q an empty directory",
			dir, e.Found, e.AskedReplica, e.AskedCell)
	case e.FoundIncarnation != e.Wanted:
		return fmt.Sprintf("%s mixes the data of two lives of replica %q of cell %q (incarnations %016x and %016x): files were copied into it",
			dir, e.AskedReplica, e.AskedCell, e.FoundIncarnation, e.Wanted)
	}
	return fmt.Sprintf("%s holds the data of replica %q of cell %q, not of replica %q of cell %q: give the right directory or the right name and cell",
		dir, e.FoundReplica, e.FoundCell, e.AskedReplica, e.AskedCell)
}

// isDataName reports whether a replica's file has this name: a segment of the log,
// or a snapshot.
func isDataName(name string) bool {
	dir, base := path.Split(name)
	ext := path.Ext(base)
	return dir == LogDir+"/" && ext == SegmentSuffix || dir == SnapDir+"/" && ext == SnapSuffix
}

// StoppedError says that a write, a flush or a change of a name has failed, so that
// the storage writes nothing any more. The process must end: what is on the disk is
// not known, and a replica that went on could neither vote nor catch up.
type StoppedError struct {
	Doing string // what failed
	Err   error
}

func (e *StoppedError) Error() string {
	return fmt.Sprintf("%s: %v; this replica writes nothing any more: look at the disk, then start it again", e.Doing, e.Err)
}

// Unwrap returns the error of the file system.
func (e *StoppedError) Unwrap() error { return e.Err }

// CheckFormat refuses data of another format, by its file's name.
func CheckFormat(name string, format uint32) error {
	switch {
	case format < codec.FormatVersion:
		return fmt.Errorf("%s has format %d, of an earlier version of lockd, and this version of lockd reads format %d alone: "+
			"start the version that wrote it. Nothing converts it: to go on with this version found a new cell in empty directories",
			name, format, codec.FormatVersion)
	case format > codec.FormatVersion:
		return fmt.Errorf("%s has format %d, of a later version of lockd, and this version of lockd reads format %d alone: start the version that wrote it",
			name, format, codec.FormatVersion)
	}
	return nil
}
