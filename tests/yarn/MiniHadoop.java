import java.io.File;
import java.io.FileOutputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.hdfs.MiniDFSCluster;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** A real HDFS and a real YARN on loopback: one name node, one data node, one resource manager, one node manager. */
public final class MiniHadoop {
    public static void main(String[] arguments) throws Exception {
        Path root = Path.of(arguments[0]);
        Path conf = Files.createDirectories(root.resolve("conf"));
        YarnConfiguration wanted = new YarnConfiguration();
        wanted.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        wanted.setInt("yarn.nodemanager.resource.memory-mb", 6144);
        wanted.setInt("yarn.nodemanager.resource.cpu-vcores", 8);
        wanted.setInt("yarn.scheduler.minimum-allocation-mb", 128);
        wanted.set("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", "99");
        wanted.set("yarn.scheduler.capacity.root.queues", "default");
        wanted.set("yarn.scheduler.capacity.root.default.capacity", "100");
        wanted.set("yarn.scheduler.capacity.maximum-am-resource-percent", "0.9");
        MiniDFSCluster files = new MiniDFSCluster.Builder(wanted, root.resolve("hdfs").toFile()).numDataNodes(1).build();
        files.waitActive();
        System.setProperty("test.build.data", root.resolve("yarn").toString());
        MiniYARNCluster cluster = new MiniYARNCluster("trident", 1, 1, 1);
        cluster.init(wanted);
        cluster.start();
        if (!cluster.waitForNodeManagersToConnect(60_000)) {
            throw new IllegalStateException("the node manager did not register within 60 s");
        }
        Configuration told = new Configuration(cluster.getConfig());
        told.set("fs.defaultFS", files.getFileSystem().getUri().toString());
        // The mapping that the cluster runs with is a class of its tests, which no client has.
        told.set("net.topology.node.switch.mapping.impl", "org.apache.hadoop.net.ScriptBasedMapping");
        for (String name : new String[] {"core-site.xml", "hdfs-site.xml", "yarn-site.xml"}) {
            File draft = conf.resolve(name + ".draft").toFile();
            try (OutputStream out = new FileOutputStream(draft)) {
                told.writeXml(out);
            }
            Files.move(draft.toPath(), conf.resolve(name), StandardCopyOption.ATOMIC_MOVE);
        }
        System.out.println("up");
        System.in.read(); // until whoever started it is gone
        System.exit(0);
    }
}
