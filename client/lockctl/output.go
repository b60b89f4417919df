package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/seed70370324/lockd/client"
)

// printJSON prints one value. Numbers of 64 bits are strings in it: JSON
// readers that keep numbers as doubles would round them.
func printJSON(v any) error {
	e := json.NewEncoder(os.Stdout)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}

func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}

// table aligns columns.
type table struct {
	b       strings.Builder
	w       *tabwriter.Writer
	columns int // every row is filled up to this: a short one would end the columns
}

func newTable(head ...string) *table {
	t := &table{}
	t.w = tabwriter.NewWriter(&t.b, 0, 0, 2, ' ', 0)
	if len(head) > 0 {
		cells := make([]any, len(head))
		for i, h := range head {
			cells[i] = h
		}
		t.row(cells...)
		t.columns = len(head)
	}
	return t
}

// row adds a row. The table is in memory, so writing cannot fail.
func (t *table) row(cells ...any) {
	for i, c := range cells {
		if i > 0 {
			_, _ = t.w.Write([]byte{'\t'})
		}
		_, _ = t.w.Write([]byte(quoteName(fmt.Sprint(c))))
	}
	for i := len(cells); i < t.columns; i++ {
		_, _ = t.w.Write([]byte{'\t'})
	}
	_, _ = t.w.Write([]byte{'\n'})
}

func (t *table) print() error {
	if err := t.w.Flush(); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	lines := strings.Split(t.b.String(), "\n")
	for i := range lines {
		lines[i] = strings.TrimRight(lines[i], " ")
	}
	if _, err := os.Stdout.WriteString(strings.Join(lines, "\n")); err != nil {
		return fmt.Errorf("print: %w", err)
	}
	return nil
}

// quoteName keeps names from playing tricks on the terminal.
func quoteName(s string) string {
	for _, r := range s {
		if !strconv.IsPrint(r) && r != ' ' {
			return strconv.Quote(s)
		}
	}
	return s
}

func stamp(t time.Time) string {
	if t.IsZero() {
		return "-"
	}
	return t.Local().Format("2006-01-02 15:04:05")
}

// span prints a duration for people; negative ones are not known.
func span(d time.Duration) string {
	switch {
	case d < 0:
		return "-"
	case d < 10*time.Second:
		return d.Round(100 * time.Millisecond).String()
	default:
		return d.Round(time.Second).String()
	}
}

func owner(session uint64) string {
	if session == 0 {
		return "-"
	}
	return "session " + strconv.FormatUint(session, 10)
}

// nodeRow is a node in JSON.
type nodeRow struct {
	Path              string    `json:"path"`
	Data              []byte    `json:"data,omitempty"`
	Kind              string    `json:"kind"`
	Size              int       `json:"size"`
	Children          int       `json:"children"`
	Instance          uint64    `json:"instance,string"`
	ContentGeneration uint64    `json:"content_generation,string"`
	LockGeneration    uint64    `json:"lock_generation,string"`
	ACLGeneration     uint64    `json:"acl_generation,string"`
	Checksum          string    `json:"checksum"`
	CreateRevision    uint64    `json:"create_revision,string"`
	ModifyRevision    uint64    `json:"modify_revision,string"`
	ChildRevision     uint64    `json:"child_revision,string"`
	Created           time.Time `json:"created"`
	Modified          time.Time `json:"modified"`
	Owner             uint64    `json:"owner,string"`
}

func nodeJSON(path string, st client.Stat) nodeRow {
	return nodeRow{
		Path: path, Kind: fmt.Sprint(st.Kind), Size: st.Size, Children: st.Children,
		Instance: st.Instance, ContentGeneration: st.ContentGeneration, LockGeneration: st.LockGeneration,
		ACLGeneration: st.ACLGeneration, Checksum: fmt.Sprintf("%016x", st.Checksum),
		CreateRevision: st.CreateRevision, ModifyRevision: st.ModifyRevision, ChildRevision: st.ChildRevision,
		Created: st.Created, Modified: st.Modified, Owner: st.Owner,
	}
}

// printJSONLine prints one value on one line, for streams.
func printJSONLine(v any) error {
	if err := json.NewEncoder(os.Stdout).Encode(v); err != nil {
		return fmt.Errorf("print JSON: %w", err)
	}
	return nil
}
