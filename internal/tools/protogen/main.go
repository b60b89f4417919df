// Command protogen turns the repository's .proto files into Go, with nothing
// installed by hand: the compiler is the protocompile library and the Go
// generator is the one inside google.golang.org/protobuf, with vtprotobuf's for
// the fast codec, all pinned by this module's go.sum. It lives in a module of
// its own so that none of them becomes a dependency of the product.
//
// Usage: protogen ROOT FILE.proto ...   (paths relative to ROOT)
package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"

	"github.com/bufbuild/protocompile"
	_ "github.com/planetscale/vtprotobuf/features/marshal"
	_ "github.com/planetscale/vtprotobuf/features/size"
	_ "github.com/planetscale/vtprotobuf/features/unmarshal"
	"github.com/planetscale/vtprotobuf/generator"
	gengo "google.golang.org/protobuf/cmd/protoc-gen-go/internal_gengo"
	"google.golang.org/protobuf/compiler/protogen"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/pluginpb"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: protogen ROOT FILE.proto ...")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2:]); err != nil {
		fmt.Fprintln(os.Stderr, "protogen:", err)
		os.Exit(1)
	}
}

func run(root string, files []string) error {
	compiler := protocompile.Compiler{
		Resolver:       protocompile.WithStandardImports(&protocompile.SourceResolver{ImportPaths: []string{root}}),
		SourceInfoMode: protocompile.SourceInfoStandard, // comments travel into the generated code
	}
	compiled, err := compiler.Compile(context.Background(), files...)
	if err != nil {
		return fmt.Errorf("compile: %w", err)
	}
	req := &pluginpb.CodeGeneratorRequest{
		FileToGenerate: files,
		Parameter:      proto.String("paths=source_relative"),
	}
	seen := map[string]bool{}
	var add func(fd protoreflect.FileDescriptor)
	add = func(fd protoreflect.FileDescriptor) {
		if seen[fd.Path()] {
			return
		}
		seen[fd.Path()] = true
		for i := 0; i < fd.Imports().Len(); i++ {
			add(fd.Imports().Get(i).FileDescriptor)
		}
		req.ProtoFile = append(req.ProtoFile, withSource(fd))
	}
	for _, fd := range compiled {
		add(fd)
	}
	plugin, err := protogen.Options{}.New(req)
	if err != nil {
		return fmt.Errorf("set up the generator: %w", err)
	}
	for _, f := range plugin.Files {
		if f.Generate {
			gengo.GenerateFile(plugin, f)
			if err := generateDecode(plugin, f); err != nil {
				return fmt.Errorf("%s: %w", f.Desc.Path(), err)
			}
		}
	}
	// A codec that does without reflection, for the messages on the path of a
	// request.
	fast, err := generator.NewGenerator(plugin, []string{"marshal", "unmarshal", "size"}, &generator.Config{})
	if err != nil {
		return fmt.Errorf("set up the generator of the fast codec: %w", err)
	}
	fast.Generate()
	resp := plugin.Response()
	if resp.Error != nil {
		return fmt.Errorf("generate: %s", resp.GetError())
	}
	for _, f := range resp.File {
		name := filepath.Join(root, filepath.FromSlash(f.GetName()))
		if err := os.WriteFile(name, []byte(f.GetContent()), 0o644); err != nil {
			return fmt.Errorf("write generated code: %w", err)
		}
	}
	return nil
}

// withSource returns the file's descriptor with its source information, which
// carries the comments.
func withSource(fd protoreflect.FileDescriptor) *descriptorpb.FileDescriptorProto {
	if res, ok := fd.(interface {
		FileDescriptorProto() *descriptorpb.FileDescriptorProto
	}); ok {
		return res.FileDescriptorProto()
	}
	return protodesc.ToFileDescriptorProto(fd)
}
